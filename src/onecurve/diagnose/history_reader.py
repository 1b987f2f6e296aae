"""Reads the records of all ranks into a `RunHistory`, one rank at a time, also while the run is in progress."""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
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
from onecurve.runs.folder import records_file
from onecurve.runs.records import record_of

PARTS = 120
"""Equal parts of a run's steps, for which times are kept."""
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
    shared = _SharedSteps(history.start.ranks, history.first_counted)
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
        self._parts = _Parts()
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

    def rank(self, shared: "_SharedSteps") -> RankHistory:
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
        own_parts = _OwnParts(columns.step[-1])
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
        _add(generation.seconds, record.seconds)
        self._parts.add(record.step, record.seconds)
        for name in _SUMS:
            self._sums[name] += getattr(record, name)
        if record.step <= _MAX_SHARED_STEP:
            self._shared_steps.append(record)
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


def _other_rank(folder: Path, number: int, history: RunHistory, shared: "_SharedSteps") -> RankHistory | None:
    """Read the file of another rank; None if it has no record yet."""
    rank: RankHistory | None = None
    start: StartRecord | None = None
    components: dict[str, int] = {}
    single: dict[int, IntervalRecord] = {}
    own_parts = _OwnParts(history.columns.step[-1])
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
    _add(rank.seconds, record.seconds)


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


class _SharedSteps:
    """The steps that every rank has recorded one by one."""

    def __init__(self, ranks: int, first: int) -> None:
        self._ranks, self._first = ranks, first
        self._own: dict[int, _Values] = {}
        self._worked: dict[int, _Values] = {}

    def add(self, step: int, seconds: Seconds, cpu_seconds: float) -> None:
        if step >= self._first and "step" not in seconds:
            own = own_seconds(seconds)
            self._own.setdefault(step, _Values()).add(own)
            worked = min(own, cpu_seconds + seconds.get("data", 0.0)) if cpu_seconds else own
            self._worked.setdefault(step, _Values()).add(worked)

    def spread(self) -> float:
        return self._mean_spread(self._own)

    def worked_spread(self) -> float:
        return self._mean_spread(self._worked)

    def _mean_spread(self, steps: "dict[int, _Values]") -> float:
        spreads = [values.spread for values in steps.values() if values.ranks == self._ranks]
        return math.fsum(spreads) / len(spreads) if spreads else 0.0


@dataclass
class _Values:
    """The values of several ranks."""

    ranks: int = 0
    total: float = 0.0
    largest: float = 0.0

    def add(self, value: float) -> None:
        self.ranks += 1
        self.total += value
        self.largest = max(self.largest, value)

    @property
    def spread(self) -> float:
        """The largest minus the mean."""
        return self.largest - self.total / self.ranks


class _OwnParts:
    """The mean seconds of a rank's steps, in equal parts of the run."""

    def __init__(self, last_step: int) -> None:
        self._last = last_step
        parts = min(PARTS, last_step)
        self._steps, self._seconds = [0] * parts, [0.0] * parts

    def add(self, step: int, steps: int, seconds: float) -> None:
        """Add `steps` steps up to `step` that took `seconds` together."""
        part = min(len(self._steps) - 1, (step - (steps + 1) // 2) * len(self._steps) // self._last)
        self._steps[part] += steps
        self._seconds[part] += seconds

    def means(self) -> list[float]:
        return [
            seconds / steps if steps else math.nan for steps, seconds in zip(self._steps, self._seconds, strict=True)
        ]


@dataclass
class _Parts:
    """Sums over consecutive steps. There are never many: when there would be, neighbours are joined."""

    parts: list[tuple[int, Seconds]] = field(default_factory=list)
    length: int = 1

    def add(self, _: int, seconds: Seconds) -> None:
        if not self.parts or self.parts[-1][0] == self.length:
            if len(self.parts) == 2 * PARTS:
                self.parts = [_joined(self.parts[i : i + 2]) for i in range(0, 2 * PARTS, 2)]
                self.length *= 2
            self.parts.append((0, {}))
        steps, sums = self.parts[-1]
        _add(sums, seconds)
        self.parts[-1] = steps + 1, sums

    def merged(self) -> list[tuple[int, Seconds]]:
        if len(self.parts) <= PARTS:
            return self.parts
        return [_joined(self.parts[i : i + 2]) for i in range(0, len(self.parts), 2)]


def _joined(parts: list[tuple[int, Seconds]]) -> tuple[int, Seconds]:
    sums: Seconds = {}
    for _, seconds in parts:
        _add(sums, seconds)
    return sum(steps for steps, _ in parts), sums


def _add(sums: Seconds, seconds: Seconds) -> None:
    for cause, value in seconds.items():
        sums[cause] = sums.get(cause, 0.0) + value
