"""Reads the records of all ranks into a `RunHistory`, one rank at a time, also while the run is in progress."""

import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import msgspec

from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import (
    FIRST_STEPS,
    PAUSES,
    RECORD_VERSION,
    EndRecord,
    EvaluationRecord,
    EventRecord,
    ExitRecord,
    GenerationRecord,
    IntervalRecord,
    LinesRecord,
    MemoryRecord,
    Record,
    StartRecord,
    StepRecord,
    own_seconds,
)
from onecurve.diagnose.history import GenerationHistory, RankHistory, RunHistory, Seconds
from onecurve.diagnose.step_sums import OwnParts, Parts, SharedSteps, add_seconds
from onecurve.runs.folder import records_file
from onecurve.runs.records import record_of

_MAX_SHARED_STEP = 64
"""Up to this step, every rank records each step."""
_NOT_SPLIT = ("step", "data", "evaluation", "checkpoint")
"""Causes that are known for every step, and the one that is not known."""
_SUMS = ("loading_seconds", "loading_cpu_seconds", "storage_seconds", "saving_cpu_seconds", "cpu_seconds")
"""Fields of records that are added up over the counted steps."""
_FAST: dict[bytes, msgspec.json.Decoder[IntervalRecord | StepRecord]] = {
    b'"kind":"interval"}\n': msgspec.json.Decoder(IntervalRecord),
    b'"kind":"step"}\n': msgspec.json.Decoder(StepRecord),
}
"""How the frequent lines end, and what decodes them."""


def read_history(folder: Path) -> RunHistory:
    """Read a run. Memory grows with its steps only by a few numbers per step, and with its ranks by a few per part."""
    try:
        first = _FirstRank(folder)
    except FileNotFoundError:
        raise OnecurveError(f"{folder}: no run's folder (it has no {records_file(Path(), 0)})") from None
    history = first.history
    shared = SharedSteps(history.start.ranks, history.first_counted)
    history.ranks.append(first.rank(shared))
    for number in range(1, history.start.ranks):
        rank = _other_rank(folder, number, history, shared)
        if rank is not None:
            history.ranks.append(rank)
    history.spread, history.worked_spread = shared.spread(), shared.worked_spread()
    return history


class _FirstRank:
    """Reads the file of rank 0, which has a line for each step."""

    def __init__(self, folder: Path) -> None:
        self.history = RunHistory(str(folder))
        self._first_steps: list[StepRecord] = []
        self._newest: StepRecord | None = None
        self._components: dict[str, int] = {}
        self._shared_steps: list[StepRecord] = []
        self._sums = dict.fromkeys(_SUMS, 0.0)
        self._parts = Parts()
        for record in _records(folder, 0):
            self._add(record)
        if not len(self.history.columns):
            raise OnecurveError(f"{folder}: the run has not done a step yet")
        self.history.causes = self._parts.merged()
        generation = self.history.counted
        skipped = min(FIRST_STEPS, max(1, generation.steps // 10))
        self._first_steps = self._first_steps[: skipped if generation.steps > 1 else 0]
        first = self._first_steps[-1].step + 1 if self._first_steps else 1
        self.history.first_counted = first

    def rank(self, shared: SharedSteps) -> RankHistory:
        """The history of rank 0 as that of any rank."""
        history, newest = self.history, self._newest
        assert newest is not None
        generation, columns = history.counted, history.columns
        seconds = dict(generation.seconds)
        for step in self._first_steps:
            for cause, value in step.seconds.items():
                seconds[cause] -= value
        steps = generation.steps - len(self._first_steps)
        counted = columns.own[len(columns) - steps :]
        for step in self._shared_steps:
            shared.add(step.step, step.seconds, step.cpu_seconds)
        own_parts = OwnParts(columns.step[-1])
        for number, own in zip(columns.step, columns.own, strict=True):
            own_parts.add(number, 1, own)
        return RankHistory(
            rank=0,
            start=generation.start,
            steps=steps,
            seconds=_with_untimed_split(seconds),
            deviation=statistics.pstdev(counted) if steps else 0.0,
            last_step=newest.step,
            memory=newest.memory,
            components=self._components,
            loader_processes=newest.loader_processes,
            **{name: self._sums[name] - sum(getattr(step, name) for step in self._first_steps) for name in _SUMS},
            skipped_samples=newest.skipped_samples,
            own=own_parts.means(),
            time=newest.time,
        )

    def _add(self, record: Record) -> None:
        history = self.history
        if isinstance(record, StepRecord) and history.generations:
            self._add_step(record)
        elif isinstance(record, StartRecord):
            history.generations.append(GenerationHistory(record))
        elif not history.generations:  # what a damaged file begins with
            return
        elif isinstance(record, GenerationRecord):
            history.generations[-1].record = record
        elif isinstance(record, EndRecord):
            history.generations[-1].end = record
        elif isinstance(record, ExitRecord):
            _note_exit(history.generations[-1], record)
        elif isinstance(record, MemoryRecord):
            self._components = record.components
        elif isinstance(record, LinesRecord):
            history.lines = record
        elif isinstance(record, EvaluationRecord):
            history.evaluations.append(record)
        elif isinstance(record, EventRecord):
            history.events.append(record)

    def _add_step(self, record: StepRecord) -> None:
        generation, columns = self.history.generations[-1], self.history.columns
        if not generation.steps:
            self.history.lines = None
            self._first_steps, self._shared_steps = [], []
            self._sums = dict.fromkeys(_SUMS, 0.0)
            self._drop_redone(record.step)
            generation.first_step_seconds = sum(record.seconds.values())
        if len(self._first_steps) < FIRST_STEPS:
            self._first_steps.append(record)
        generation.steps += 1
        generation.last_time = record.time
        add_seconds(generation.seconds, record.seconds)
        self._parts.add(record.step, record.seconds)
        for name in _SUMS:
            self._sums[name] += getattr(record, name)
        if record.step <= _MAX_SHARED_STEP:
            self._shared_steps.append(record)
        self.history.noise.add(record, generation.start.global_batch)
        columns.step.append(record.step)
        columns.loss.append(record.loss)
        columns.gradient_norm.append(record.gradient_norm)
        columns.lr.append(record.lr)
        columns.samples.append(record.samples)
        columns.seconds.append(sum(record.seconds.values()))
        columns.own.append(own_seconds(record.seconds))
        columns.paused.append(sum(record.seconds.get(cause, 0.0) for cause in PAUSES))
        columns.time.append(record.time)
        columns.generation.append(len(self.history.generations) - 1)
        self._newest = record

    def _drop_redone(self, step: int) -> None:
        """Remove the steps that are done again from this one on, and note what they took."""
        columns = self.history.columns
        while len(columns) and columns.step[-1] >= step:
            generation = self.history.generations[columns.generation[-1]]
            generation.lost_steps += 1
            if generation.lost_steps < generation.steps:  # the first one is counted as such
                generation.lost_seconds += columns.seconds[-1] - columns.paused[-1]
            columns.pop()


def _note_exit(generation: GenerationHistory, record: ExitRecord) -> None:
    if generation.end is not None and record.begin < generation.end.time:  # not a command that had nothing left to do
        generation.exit_seconds = record.time - generation.end.time


def _other_rank(folder: Path, number: int, history: RunHistory, shared: SharedSteps) -> RankHistory | None:
    """Read the file of another rank; None if it has no record yet."""
    rank: RankHistory | None = None
    start: StartRecord | None = None
    components: dict[str, int] = {}
    single: dict[int, IntervalRecord] = {}
    own_parts = OwnParts(history.columns.step[-1])
    squares = 0.0
    try:
        for record in _records(folder, number):
            if isinstance(record, StartRecord):
                start = record
            elif isinstance(record, MemoryRecord):
                components = record.components
            elif isinstance(record, IntervalRecord) and start is not None:
                if rank is None or rank.start is not start:  # the first interval of a generation
                    rank, squares, single = RankHistory(rank=number, start=start), 0.0, {}
                own_parts.add(record.step, record.steps, own_seconds(record.seconds))
                rank.last_step, rank.memory, rank.time = record.step, record.memory, record.time
                rank.loader_processes, rank.components = record.loader_processes, components
                rank.skipped_samples += record.skipped_samples
                if record.step - record.steps + 1 >= history.first_counted:
                    _count(rank, record)
                    squares += record.steps * record.deviation**2
                    if record.steps == 1:
                        single[record.step] = record
    except FileNotFoundError:
        return None
    if rank is None:
        return RankHistory(rank=number, start=start, time=start.time) if start is not None else None
    for record in single.values():
        shared.add(record.step, record.seconds, record.cpu_seconds)
    rank.deviation = math.sqrt(squares / rank.steps) if rank.steps else 0.0
    rank.seconds = _with_untimed_split(rank.seconds)
    rank.own = own_parts.means()
    return rank


def _count(rank: RankHistory, record: IntervalRecord) -> None:
    rank.steps += record.steps
    for name in _SUMS:
        setattr(rank, name, getattr(rank, name) + getattr(record, name))
    add_seconds(rank.seconds, record.seconds)


def _with_untimed_split(seconds: Seconds) -> Seconds:
    """Split the seconds of steps that were not timed like those that were. On accelerators most are not."""
    timed = {cause: value for cause, value in seconds.items() if cause not in _NOT_SPLIT and value > 0}
    untimed, total = seconds.get("step", 0.0), sum(timed.values())
    if not untimed or not total:
        return seconds
    split = {cause: value * (1 + untimed / total) if cause in timed else value for cause, value in seconds.items()}
    return {cause: value for cause, value in split.items() if cause != "step"}


def _records(folder: Path, rank: int) -> Iterator[Record]:
    """The records of one rank. The last line may be incomplete."""
    path = records_file(folder, rank)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            decoder = next((decoder for end, decoder in _FAST.items() if line.endswith(end)), None)
            try:
                record = decoder.decode(line) if decoder is not None else record_of(line, f"{path}:{number}")
            except msgspec.DecodeError:  # a number that is not finite, for example
                try:
                    record = record_of(line, f"{path}:{number}")
                except OnecurveError:  # a line that was cut off when its host or disk failed
                    continue
            except OnecurveError:
                continue
            if isinstance(record, StartRecord) and record.version < RECORD_VERSION:
                raise OnecurveError(
                    f"{path}:{number}: recorded by an older onecurve, which did not record where the time of a step "
                    "went; continue the run with this one, or look at its summary.json"
                )
            yield record
