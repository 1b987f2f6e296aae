"""A generation of a run: one life of the process group. A failure or a change of the hosts starts the next."""

from dataclasses import dataclass, field

from onecurve.describe.estimate import PredictedStep
from onecurve.describe.plan import Plan


@dataclass(frozen=True)
class StoreAddress:
    """Where the store of a generation is served, and the key of those who may use it."""

    host: str
    port: int
    key: str = field(repr=False)
    """As hexadecimal digits."""


@dataclass(frozen=True, kw_only=True)
class SnapshotPoint:
    """A snapshot in the memory of keepers that all ranks of a generation have completed."""

    generation: int
    ranks: int
    """Number of ranks of that generation."""
    step: int
    """Steps that were done."""


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """What ended the generation before this one."""

    why: str
    """For a person: `lost rank 2 on h1 (SIGKILL)`."""
    step: int
    """Steps that were done when it happened."""
    time: float
    """When it happened, in seconds since the epoch."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by cause so far: `detect`, `leave`, `agree`."""
    facts_known: bool = False
    """True if one of the living processes knows the `JobFacts`, and will tell the others."""
    has_trained: bool = False
    """True if the run has done a step in any of its generations; then it never starts over."""
    plan_changed: bool = False
    """True if this generation has another plan."""
    snapshot: SnapshotPoint | None = None
    """The newest snapshot that can be loaded; None if there is none."""
    failures: int = 1
    """Failures of the run so far."""
    run_seconds: float = 0.0
    """How long the run has taken so far."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What all ranks of a generation are told."""

    number: int
    """Counted from 1."""
    size: int
    """Number of ranks."""
    hosts: int
    store: StoreAddress
    """The store through which the ranks find each other."""
    plan: Plan | None = None
    """How to split the job; None: the model is replicated on every rank."""
    predicted: PredictedStep = field(default_factory=PredictedStep)
    """Empty if the plan was given."""
    interruption: Interruption | None = None
    """None in the first generation."""
    untrained: int = 0
    """Generations before this one in which the ranks did not train: they measured links."""

    @property
    def trained_number(self) -> int:
        """Its number among the generations that train, as records have it."""
        return self.number - self.untrained
