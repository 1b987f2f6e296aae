"""What `onecurve why` finds: where the time of a run went, what limits it, and what to change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

Cause = Literal[
    "data",
    "storage",
    "slow_rank",
    "uneven_samples",
    "busy_hosts",
    "communication",
    "batch_norm",
    "micro_batch",
    "pipeline",
    "plan",
    "threads",
    "host_reads",
    "checkpoint",
    "evaluation",
]
"""What can limit a run."""
_LEAST_MEASURED_GAIN = 0.02
"""A measured gain below this is not distinguishable from the noise of a trial."""


@dataclass(frozen=True)
class Gain:
    """Fraction of the time that a change would save, with the interval in which nine of ten changes should lie."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that limits a run, and what to change."""

    cause: Cause
    limit: str
    """What limits the run, for a person."""
    change: str
    """The exact change, for a person."""
    gain: Gain
    plan: str = ""
    """The plan to use instead, if that is the change."""
    job: Mapping[str, float | str] = field(default_factory=dict)
    """Fields of the job to change, if these are the change."""


@dataclass(frozen=True, kw_only=True)
class TriedChange:
    """The change of a finding, tried in a few steps next to the run as it was."""

    change: str
    predicted: Gain
    steps: int = 0
    """Steps that were compared."""
    before: float = 0.0
    after: float = 0.0
    """Mean seconds of a step, without the change and with it."""
    measured: float | None = None
    """Fraction of the time that the change saves; None if it was not tried."""
    note: str = ""
    """Why it was not tried, for a person."""

    @property
    def is_refuted(self) -> bool:
        """True if the change saves nothing worth it."""
        return self.measured is not None and self.measured < _LEAST_MEASURED_GAIN


@dataclass(frozen=True, kw_only=True)
class TriedChanges:
    """What `onecurve why --try` has tried on a run; the content of tried.json."""

    file_version: ClassVar[int] = 1

    plan: str
    """The plan of the run when it was tried."""
    changes: tuple[TriedChange, ...]


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Mean seconds of a counted step by cause, averaged over ranks. They add up to `total`."""

    own: Mapping[str, float]
    """What a rank does without waiting for others: `data`, `copy`, `forward`, `backward`, …"""
    communication: Mapping[str, float]
    """By axis, and for `batch_norm`, `tables` and `sync`; without waiting for ranks that are late."""
    bubble: float
    """Waiting for other pipeline stages, transfers included."""
    slowest: float
    """Waiting for ranks that are slower than the others in most steps."""
    uneven: float
    """Waiting for ranks that have more work in a step, each time another one."""
    interrupted: float
    """Waiting for ranks whose cores other programs have had, each time another one."""
    pauses: Mapping[str, float]
    """`evaluation` and `checkpoint`, spread over the steps."""

    @property
    def total(self) -> float:
        return sum(self.by_cause.values())

    @property
    def by_cause(self) -> dict[str, float]:
        """All of it, in the order in which it is shown."""
        own, rest = dict(self.own), {name: getattr(self, name) for name in ("slowest", "uneven", "interrupted")}
        bubble = {"bubble": self.bubble} if self.bubble else {}
        return {**own, **self.communication, **bubble, **rest, **self.pauses}


@dataclass(frozen=True)
class Factor:
    """One factor of the efficiency: the fraction of the time that is left after something is taken away."""

    name: str
    measured: float
    predicted: float | None = None


@dataclass(frozen=True, kw_only=True)
class TimeIdentity:
    """time = work ÷ (rate of one device × devices × efficiency)."""

    work: float
    """FLOPs of the model for all steps that count."""
    rate: float
    """Peak FLOPs per second of one device."""
    devices: int
    factors: tuple[Factor, ...]
    """Their product is the efficiency."""
    seconds: float
    """Measured wall time."""

    @property
    def efficiency(self) -> float:
        product = 1.0
        for factor in self.factors:
            product *= factor.measured
        return product


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What `onecurve why` finds about one run."""

    folder: str
    plan: str
    ranks: int
    hosts: int
    device: str
    steps: int
    """Steps done."""
    steps_planned: int
    counted_steps: int
    """Steps that the times are about: those of the newest generation, without the first ones."""
    in_progress: bool
    times: StepTimes
    predicted: Mapping[str, float]
    """Predicted seconds of a step by cause; empty if nothing was predicted."""
    wall: Mapping[str, float]
    """Seconds of the whole run by cause."""
    findings: tuple[Finding, ...]
    """What limits the run, the largest gain first; empty if there is nothing worth naming."""
    identity: TimeIdentity | None
    """None if the model's FLOPs are not known."""
    samples_per_second: float
    tokens_per_second: float | None = None
    speedup: float | None = None
    """Predicted seconds of a step on one device over the measured ones; None if that is not known."""
    utilization: float | None = None
    """Model FLOPs utilization in the counted steps; None if the model's FLOPs are not known."""
    noise_scale: float | None = None
    """Gradient noise scale, in samples: up to about this batch size, larger batches need fewer steps; None if it is not
    known."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes by component of the rank that uses the most."""
    memory_rank: int = 0
    predicted_memory: Mapping[str, float] = field(default_factory=dict)
    note: str = ""
    """What could not be found out, for a person."""
    tried: tuple[TriedChange, ...] = ()
    """The changes that were tried under this plan, now or by an earlier `onecurve why --try`."""

    @property
    def efficiency(self) -> float | None:
        """Parallel efficiency: the speed-up per device."""
        return None if self.speedup is None else self.speedup / self.ranks
