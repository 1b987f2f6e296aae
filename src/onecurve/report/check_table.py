"""The output of `onecurve check`: one line per plan as soon as it has been compared, and a summary."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from onecurve.describe.plan import Plan
from onecurve.describe.verdict import CheckResult, Verdict
from onecurve.report.text import print_markup


class CheckTable:
    """Prints verdicts as they arrive; on a terminal it also shows a status line."""

    def __init__(self, plans: Sequence[Plan], console: Console) -> None:
        self._plans = plans
        self._console = console
        self._width = max(len(str(plan)) for plan in plans)
        self._status = console.status("") if console.is_terminal else None
        self._done = 0

    def begin(self, steps: int, references: int) -> None:
        """`references`: number of one-device runs that the plans are compared with."""
        self._print(f"checking {len(self._plans)} plans over {steps} steps against one device")
        if self._status:
            self._status.start()
            self._status.update(f"training {references} one-device reference{'s' if references != 1 else ''}")

    def add(self, verdict: Verdict) -> None:
        self._done += 1
        self._print(verdict_line(verdict, self._width))
        if self._status:
            self._status.update(f"{self._done} of {len(self._plans)} plans")
            if self._done == len(self._plans):
                self._status.stop()

    def _print(self, text: str) -> None:
        print_markup(self._console, text)


def verdict_line(verdict: Verdict, width: int) -> str:
    """The verdict on one plan, with its largest or first difference. `width`: columns for the plan."""
    tensor = escape(verdict.tensor)
    if verdict.holds:
        word, where = "[green]holds  [/green]", f"largest difference at {tensor}"
    else:
        word, where = "[bold red]DIFFERS[/bold red]", f"first at step {verdict.step}, {tensor}"
    return f"{word} {verdict.plan:<{width}}  {verdict.size:.1e}  {where}"


def result_lines(result: CheckResult) -> list[str]:
    """The notes of a check, and how many plans hold."""
    lines = [f"note: {note}" for note in result.notes]
    total = len(result.verdicts)
    different = sum(not verdict.holds for verdict in result.verdicts)
    if result.precision == "fp64":
        limit = f"limit: {result.limit:.0e} of each tensor's scale"
    else:
        limit = f"limit: {result.limit:.0f} × the spread of perturbed runs"
    if different:
        lines.append(f"{different} of {total} plans do not compute the same as one device ({limit})")
    else:
        lines.append(f"all {total} plans compute the same as one device ({limit})")
    return lines
