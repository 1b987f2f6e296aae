"""What the records of a run say, in a size that does not grow with its steps: what `why` and `status` look at."""

from array import array
from dataclasses import dataclass, field

from onecurve.describe.record import (
    EndRecord,
    EvaluationRecord,
    EventRecord,
    GenerationRecord,
    LinesRecord,
    StartRecord,
)
from onecurve.diagnose.noise_scale import NoiseHistory

Seconds = dict[str, float]
"""Seconds by cause."""


@dataclass
class StepColumns:
    """The steps of rank 0, one value per step."""

    step: "array[int]" = field(default_factory=lambda: array("q"))
    loss: "array[float]" = field(default_factory=lambda: array("d"))
    gradient_norm: "array[float]" = field(default_factory=lambda: array("d"))
    lr: "array[float]" = field(default_factory=lambda: array("d"))
    samples: "array[int]" = field(default_factory=lambda: array("q"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    """Of the whole step, with what was done since the step before."""
    own: "array[float]" = field(default_factory=lambda: array("d"))
    """Without waiting for others, evaluations and checkpoints."""
    paused: "array[float]" = field(default_factory=lambda: array("d"))
    """Evaluations and checkpoints since the step before."""
    time: "array[float]" = field(default_factory=lambda: array("d"))
    """When it ended, in seconds since the epoch."""
    generation: "array[int]" = field(default_factory=lambda: array("q"))

    def __len__(self) -> int:
        return len(self.step)

    def pop(self) -> None:
        """Remove the last step."""
        for column in vars(self).values():
            column.pop()


@dataclass
class RankHistory:
    """One rank. Sums are over the counted steps: those of the newest generation, without the first ones."""

    rank: int
    start: StartRecord
    """The newest one."""
    steps: int = 0
    """Counted steps."""
    seconds: Seconds = field(default_factory=dict)
    """Sums over these steps."""
    deviation: float = 0.0
    """Standard deviation of the seconds in which the rank did not wait for others, from step to step."""
    last_step: int = 0
    memory: int = 0
    """Peak, in bytes."""
    components: dict[str, int] = field(default_factory=dict)
    """Bytes by component, after the first step."""
    loader_processes: int = 0
    loading_seconds: float = 0.0
    loading_cpu_seconds: float = 0.0
    storage_seconds: float = 0.0
    """Seconds that it took to load the samples of the counted steps, the CPU time, and the time of waiting for remote
    storage."""
    skipped_samples: int = 0
    saving_cpu_seconds: float = 0.0
    """CPU time of writing checkpoints in the background, in the counted steps."""
    cpu_seconds: float = 0.0
    """CPU time of the thread that trains, in the counted steps; 0 if it is not known."""
    own: list[float] = field(default_factory=list)
    """For equal parts of the run: the mean seconds of a step in which the rank did not wait for others; NaN if a part
    has no step."""
    time: float = 0.0
    """When it wrote its newest record."""

    @property
    def host(self) -> str:
        return self.start.host

    def mean(self, cause: str) -> float:
        """Seconds per step."""
        return self.seconds.get(cause, 0.0) / max(1, self.steps)


@dataclass
class GenerationHistory:
    """One life of the process group, as rank 0 has recorded it. Started again, a run has another first generation."""

    start: StartRecord
    record: GenerationRecord | None = None
    end: EndRecord | None = None
    """None if it was ended from outside."""
    exit_seconds: float = 0.0
    """From its end to that of the command."""
    steps: int = 0
    seconds: Seconds = field(default_factory=dict)
    """Of all its steps."""
    first_step_seconds: float = 0.0
    last_time: float = 0.0
    """When its last step ended, in seconds since the epoch."""
    lost_steps: int = 0
    lost_seconds: float = 0.0
    """Those that were done again by a later generation; without the first step, and without evaluations and
    checkpoints."""


@dataclass
class RunHistory:
    """A run, in all its processes."""

    folder: str
    generations: list[GenerationHistory] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    evaluations: list[EvaluationRecord] = field(default_factory=list)
    columns: StepColumns = field(default_factory=StepColumns)
    causes: list[tuple[int, Seconds]] = field(default_factory=list)
    """Of rank 0, for equal parts of the run: the number of steps, and their seconds by cause."""
    noise: NoiseHistory = field(default_factory=NoiseHistory)
    lines: LinesRecord | None = None
    """Where rank 0 was in the user's code, in the newest generation."""
    ranks: list[RankHistory] = field(default_factory=list)
    spread: float = 0.0
    """How much longer the rank with the most own work in a step works than the average one: the mean over the counted
    steps that all ranks have recorded one by one. Without waiting for others."""
    worked_spread: float = 0.0
    """The same, without the time in which other programs have had the ranks' cores."""
    first_counted: int = 0
    """Number of the first counted step."""

    @property
    def counted(self) -> GenerationHistory:
        """The newest generation that has done a step."""
        return next(generation for generation in reversed(self.generations) if generation.steps)

    @property
    def start(self) -> StartRecord:
        """How that generation has started, on rank 0."""
        return self.counted.start

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        record = self.counted.record
        return record.hosts if record is not None else len({rank.host for rank in self.ranks})

    @property
    def counted_steps(self) -> int:
        return self.ranks[0].steps

    def mean(self, cause: str) -> float:
        """Seconds per counted step, averaged over the ranks that have recorded some."""
        ranks = [rank for rank in self.ranks if rank.steps]
        return sum(rank.mean(cause) for rank in ranks) / max(1, len(ranks))
