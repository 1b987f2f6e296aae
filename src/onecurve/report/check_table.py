"""The output of `onecurve check`: one line per plan as soon as it has been compared, and a summary."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from onecurve.describe.plan import Plan
from onecurve.describe.units import counted, seconds_text
from onecurve.describe.verdict import CheckResult, Verdict
from onecurve.report.text import print_markup


class CheckTable:
    """Prints verdicts as they arrive; on a terminal it also shows a status line."""

    def __init__(self, plans: Sequence[Plan], console: Console) -> None:
        self._plans = plans
        self._console = console
        self._width = max((len(str(plan)) for plan in plans), default=0)
        self._status = console.status("") if console.is_terminal else None
        self._done = 0
        self._first_time = 0.0
        """When the first verdict came in."""

    def begin(self, steps: int, references: int, refused: Sequence[Verdict] = ()) -> None:
        """`references`: number of one-device runs that the plans are compared with; `refused`: known already."""
        plans = counted(len(self._plans), "plan")
        self._print(f"checking {plans} over {steps} steps against one device")
        for verdict in refused:
            self._print(verdict_line(verdict, self._width))
        if self._status:
            self._status.start()
            self._status.update(f"training {counted(references, 'one-device reference')}")

    def add(self, verdict: Verdict) -> None:
        self._done += 1
        self._first_time = self._first_time or time.monotonic()
        self._print(verdict_line(verdict, self._width))
        if self._status:
            self._status.update(f"{self._done} of {len(self._plans)} plans{self._time_left()}")
            if self._done == len(self._plans):
                self._status.stop()

    def _time_left(self) -> str:
        """As long as the other plans would take if they took as long as those after the first."""
        if self._done < 2:
            return ""
        per_plan = (time.monotonic() - self._first_time) / (self._done - 1)
        return f", {seconds_text(per_plan * (len(self._plans) - self._done))} left"

    def _print(self, text: str) -> None:
        print_markup(self._console, text)


def verdict_line(verdict: Verdict, width: int) -> str:
    """The verdict on one plan, with its largest or first difference. `width`: columns for the plan."""
    if verdict.reason:
        color, word = ("yellow", "refused") if verdict.outcome == "refused" else ("bold red", "FAILED ")
        return f"[{color}]{word}[/{color}] {verdict.plan:<{width}}  {escape(summary_of(verdict.reason))}"
    tensor = escape(verdict.tensor)
    if verdict.holds:
        word, where = "[green]holds  [/green]", f"largest difference at {tensor}"
    else:
        word, where = (
            "[bold red]DIFFERS[/bold red]",
            f"first at step {verdict.step}{', from moved weights' * verdict.moved}, {tensor}",
        )
    limit = f"{verdict.limit:.0e}" if verdict.limit < 1 else f"{verdict.limit:g}"
    return f"{word} {verdict.plan:<{width}}  {verdict.size:.1e} (limit {limit})  {where}"


def summary_of(reason: str) -> str:
    """The first line of a reason, or the last one of a traceback, which names the error."""
    lines = reason.strip().splitlines()
    is_traceback = any(line.startswith("Traceback") for line in lines[:1]) or "Traceback (most recent" in lines[0]
    return lines[-1] if is_traceback else lines[0]


def result_lines(result: CheckResult) -> list[str]:
    """The reasons of failures, each once, the notes of a check, and how many plans hold."""
    lines = []
    failures: dict[str, list[str]] = {}
    for verdict in result.verdicts:
        if len(verdict.reason.splitlines()) > 1:
            failures.setdefault(verdict.reason, []).append(verdict.plan)
    for reason, plans in failures.items():
        lines += [f"{', '.join(plans)} failed:", *(f"  {line}" for line in reason.splitlines())]
    lines += [f"note: {note}" for note in result.notes]
    return [*lines, _summary(result)]


def _summary(result: CheckResult) -> str:
    total = len(result.verdicts)
    if result.precision == "fp64":
        limit = f"limit: {result.limit:.0e} of each tensor's scale"
        if any(verdict.limit > result.limit for verdict in result.verdicts):
            limit += ", larger for weights whose gradient is zero except for rounding errors"
    else:
        limit = f"limit: {result.limit:.0f} × the spread of perturbed runs"
    if result.holds:
        plans = f"all {total} plans compute" if total != 1 else "the plan computes"
        return f"{plans} the same as one device ({limit})"
    phrases = {  # of one plan, and of several
        "differs": ("does not compute the same as one device", "do not compute the same as one device"),
        "failed": ("failed", "failed"),
        "refused": ("was refused", "were refused"),
    }
    counts = {outcome: sum(verdict.outcome == outcome for verdict in result.verdicts) for outcome in phrases}
    said = ", ".join(f"{count} {phrases[outcome][count > 1]}" for outcome, count in counts.items() if count)
    return f"of {counted(total, 'plan')}, {said} ({limit})"
