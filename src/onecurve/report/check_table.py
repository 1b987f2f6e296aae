"""The table of a check, a row as each plan is done."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from onecurve.describe.plan import Plan
from onecurve.describe.verdict import CheckResult, Verdict


class CheckTable:
    def __init__(self, plans: Sequence[Plan], console: Console) -> None:
        self._plans = plans
        self._console = console
        self._width = max(len(str(plan)) for plan in plans)
        self._status = console.status("") if console.is_terminal else None
        self._done = 0

    def begin(self, steps: int, references: int) -> None:
        self._print(f"checking {len(self._plans)} plans over {steps} steps against one device")
        if self._status:
            self._status.start()
            self._status.update(f"training {references} references on one device")

    def add(self, verdict: Verdict) -> None:
        self._done += 1
        self._print(verdict_line(verdict, self._width))
        if self._status:
            self._status.update(f"{self._done} of {len(self._plans)} plans")
            if self._done == len(self._plans):
                self._status.stop()

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


def verdict_line(verdict: Verdict, width: int) -> str:
    word = "[green]holds  [/green]" if verdict.holds else "[bold red]DIFFERS[/bold red]"
    where = (
        f"at {escape(verdict.tensor)}" if verdict.holds else f"first at step {verdict.step}, {escape(verdict.tensor)}"
    )
    return f"{word} {verdict.plan:<{width}}  {verdict.size:.1e}  {where}"


def result_lines(result: CheckResult) -> list[str]:
    """The verdict in words."""
    lines = [f"note: {note}" for note in result.notes]
    bad = sum(not verdict.holds for verdict in result.verdicts)
    limit = (
        f"{result.limit:.0e} of each tensor's scale"
        if result.precision == "fp64"
        else f"{result.limit:.0f} × the spread"
    )
    total = len(result.verdicts)
    if bad:
        lines.append(f"{bad} of {total} plans do not compute what one device computes (limit {limit})")
    else:
        lines.append(f"all {total} plans compute what one device computes (limit {limit})")
    return lines
