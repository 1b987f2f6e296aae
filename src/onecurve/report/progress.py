"""How a run is doing: a bar in a terminal, plain lines anywhere else."""

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from onecurve.describe.record import EvaluationRecord, Record, StartRecord, StepRecord
from onecurve.describe.units import seconds_text

_FIRST_LINES = 3
_SECONDS_BETWEEN_LINES = 10.0
_RECENT = 20


class Terminal:
    """A sink that shows records to a person."""

    def __init__(self, steps: int, console: Console) -> None:
        self._steps = steps
        self._console = console
        self._speed = _Speed()
        self._bar = _Bar(steps, console) if console.is_terminal else None
        self._lines = 0
        self._last_line = 0.0

    def write(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._show_step(record)
        elif isinstance(record, EvaluationRecord):
            self._console.print(
                f"step {record.step + 1:>{len(str(self._steps))}}/{self._steps}  {_evaluation(record)}", highlight=False
            )
        elif isinstance(record, StartRecord):
            self._console.print(_start(record), highlight=False)
        else:
            self._console.print(f"[bold]{escape(record.event)}[/bold]  {escape(record.text)}", highlight=False)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show_step(self, record: StepRecord) -> None:
        self._speed.add(
            record.step, record.samples, sum(record.seconds.values()) - record.seconds.get("evaluation", 0.0)
        )
        done = record.step + 1
        if record.skipped:
            self._console.print(f"[yellow]step {done}: loss or gradient not finite, update skipped[/yellow]")
        speed = f"{self._speed.samples_per_second:,.0f} samples/s"
        left = self._speed.time_for((self._steps - done) * record.samples / done)
        remaining = f"  {seconds_text(left)} left" if done < self._steps else ""
        if self._bar is not None:
            self._bar.show(done, f"loss {record.loss:.4f}  {speed}{remaining}")
        elif self._is_due(done):
            self._lines += 1
            self._last_line = time.monotonic()
            self._console.print(
                f"step {done:>{len(str(self._steps))}}/{self._steps}  loss {record.loss:.4f}  {speed}  "
                f"lr {record.lr:.2e}{remaining}",
                highlight=False,
                soft_wrap=True,
            )

    def _is_due(self, done: int) -> bool:
        waited = time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES
        return self._lines < _FIRST_LINES or waited or done == self._steps


class _Bar:
    """`training ━━━━━━╺━━━━━ 120/400  loss 2.3145  512 samples/s  1 min 05 s left`, in 80 columns."""

    def __init__(self, steps: int, console: Console) -> None:
        self._progress = Progress(
            TextColumn("training", style="bold"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.completed}/{task.total}", style="cyan"),
            _Facts(),
            console=console,
            expand=True,
            transient=False,
        )
        self._task = self._progress.add_task("", total=steps, facts="")
        self._progress.start()

    def show(self, done: int, facts: str) -> None:
        self._progress.update(self._task, completed=done, facts=facts)

    def stop(self) -> None:
        self._progress.stop()


class _Facts(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(task.fields["facts"], no_wrap=True)


class _Speed:
    """Samples per second over the latest steps, so that a slow start is soon forgotten."""

    def __init__(self) -> None:
        self._recent: list[tuple[float, float]] = []
        self._before: float | None = None

    def add(self, step: int, samples: int, seconds: float) -> None:
        """`samples`: since the start, which may lie in a life before this one."""
        if self._before is None:
            self._before = samples * step / (step + 1)
        self._recent = [*self._recent[-_RECENT + 1 :], (samples - self._before, seconds)]
        self._before = samples

    @property
    def samples_per_second(self) -> float:
        seconds = sum(step[1] for step in self._recent)
        return sum(step[0] for step in self._recent) / seconds if seconds else 0.0

    def time_for(self, samples: float) -> float:
        return samples / self.samples_per_second if self.samples_per_second else 0.0


def _evaluation(record: EvaluationRecord) -> str:
    metrics = "".join(f"  {escape(name)} {value:.4f}" for name, value in record.metrics.items())
    return f"evaluation: loss {record.loss:.4f}{metrics}  ({record.samples:,} samples, {seconds_text(record.seconds)})"


def _start(record: StartRecord) -> str:
    ranks = f"{record.ranks} {record.device} rank" + ("s" if record.ranks > 1 else "")
    return f"[bold]{escape(record.plan)}[/bold]  {ranks}, {record.parameters:,} parameters, {record.steps:,} steps"
