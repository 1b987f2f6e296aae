"""Shows the progress of a run: a bar on a terminal, plain lines anywhere else."""

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from onecurve.describe.record import EvaluationRecord, EventRecord, GenerationRecord, Record, StartRecord, StepRecord
from onecurve.describe.units import counted, seconds_text
from onecurve.report.evaluation import evaluation_text
from onecurve.report.text import print_markup

_FIRST_LINES = 3
"""Steps that are always printed when there is no terminal."""
_SECONDS_BETWEEN_LINES = 10.0
_SPEED_WINDOW = 20
"""Steps over which the speed is averaged."""


class Terminal:
    """A sink that prints records for a person to read."""

    def __init__(self, steps: int, global_batch: int, console: Console, epoch_samples: int = 0) -> None:
        """`epoch_samples`: samples of an epoch; 0 if the data has no end."""
        self._steps, self._global_batch, self._epoch_samples = steps, global_batch, epoch_samples
        self._console = console
        self._losses: list[float] = []
        """Of the steps since the last line."""
        self._speed = _Speed()
        self._bar = _Bar(steps, console) if console.is_terminal else None
        self._lines = 0
        self._last_line = 0.0

    def write(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._show_step(record)
        elif isinstance(record, EvaluationRecord):
            self._print(f"step {record.step:>{len(str(self._steps))}}/{self._steps}  {escape(evaluation_text(record))}")
        elif isinstance(record, StartRecord):
            if record.generation == 1:
                self._print(_start_text(record))
        elif isinstance(record, GenerationRecord):
            if record.generation > 1:
                self._print(_generation_text(record))
        elif isinstance(record, EventRecord) and not _is_detail(record):
            self._print(f"[bold]{escape(record.event)}[/bold]  {escape(record.text)}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show_step(self, record: StepRecord) -> None:
        seconds = sum(record.seconds.values()) - record.seconds.get("evaluation", 0.0)
        self._speed.add(self._global_batch, seconds)
        done = record.step
        if record.skipped:
            self._print(f"[yellow]step {done}: loss or gradient is not finite, update skipped[/yellow]")
        speed = f"{self._speed.samples_per_second:,.0f} samples/s"
        seconds_left = self._speed.seconds_for((self._steps - done) * self._global_batch)
        remaining = f"  {seconds_text(seconds_left)} left" if done < self._steps else ""
        self._losses.append(record.loss)
        if self._bar is not None:
            self._bar.show(done, f"loss {record.loss:.4f}  {speed}{remaining}")
            self._losses = []
        elif self._is_due(done):
            self._lines += 1
            self._last_line = time.monotonic()
            self._print(
                f"step {done:>{len(str(self._steps))}}/{self._steps}  rank 0  {self._epoch_text(record)}"
                f"{self._loss_text()}  {speed}  lr {record.lr:.2e}{self._epoch_time()}{remaining}"
            )

    def _loss_text(self) -> str:
        """The mean loss since the last line."""
        losses, self._losses = self._losses, []
        steps = f" (mean of {len(losses)} steps)" if len(losses) > 1 else ""
        return f"loss {sum(losses) / len(losses):.4f}{steps}"

    def _epoch_text(self, record: StepRecord) -> str:
        return f"epoch {record.samples / self._epoch_samples:.2f}  " if self._epoch_samples else ""

    def _epoch_time(self) -> str:
        seconds = self._speed.seconds_for(self._epoch_samples)
        return f"  {seconds_text(seconds)} per epoch" if self._epoch_samples else ""

    def _print(self, markup: str) -> None:
        print_markup(self._console, markup)

    def _is_due(self, done: int) -> bool:
        has_waited = time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES
        return self._lines < _FIRST_LINES or has_waited or done == self._steps


class _Bar:
    """A progress bar: `training ━━━━━━╺━━━━━ 120/400  loss 2.3145  512 samples/s  1 min 05 s left`."""

    def __init__(self, steps: int, console: Console) -> None:
        self._progress = Progress(
            TextColumn("training", style="bold"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.completed}/{task.total}", style="cyan"),
            _TextField(),
            console=console,
            expand=True,
            transient=False,
        )
        self._task = self._progress.add_task("", total=steps, text="")
        self._progress.start()

    def show(self, done: int, text: str) -> None:
        self._progress.update(self._task, completed=done, text=text)

    def stop(self) -> None:
        self._progress.stop()


class _TextField(ProgressColumn):
    """The task's field `text`, which unlike a TextColumn is not parsed as markup."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["text"], no_wrap=True)


class _Speed:
    """Samples per second, averaged over the latest steps.

    The first step counts only until there is a second one: it compiles, allocates memory and fills caches.
    """

    def __init__(self) -> None:
        self._recent: list[tuple[int, float]] = []
        """Samples and seconds of each of the latest steps."""
        self._steps = 0

    def add(self, samples: int, seconds: float) -> None:
        """Add a step of `samples` samples."""
        self._steps += 1
        before = [] if self._steps == 2 else self._recent[-_SPEED_WINDOW + 1 :]
        self._recent = [*before, (samples, seconds)]

    @property
    def samples_per_second(self) -> float:
        total_seconds = sum(seconds for _, seconds in self._recent)
        return sum(samples for samples, _ in self._recent) / total_seconds if total_seconds else 0.0

    def seconds_for(self, samples: float) -> float:
        return samples / self.samples_per_second if self.samples_per_second else 0.0


def _is_detail(record: EventRecord) -> bool:
    """True for events that are only recorded: how often snapshots are taken, and what a GenerationRecord says too."""
    return record.event == "snapshots" or (record.event == "resumed" and record.generation > 1)


def _start_text(record: StartRecord) -> str:
    ranks = counted(record.ranks, f"{record.device} rank")
    steps = f"{record.steps:,} steps of {record.global_batch:,} samples"
    return f"[bold]{escape(record.plan)}[/bold]  {ranks}, {record.parameters:,} parameters, {steps}"


def _generation_text(record: GenerationRecord) -> str:
    at = record.from_step + record.lost_steps
    return (
        f"[bold yellow]{escape(record.why)}[/bold yellow] at step {at}; continuing from step {record.from_step} with "
        f"plan {escape(record.plan)} after {seconds_text(sum(record.seconds.values()))}"
    )
