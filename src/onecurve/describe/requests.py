"""What a launcher asks of the processes that it starts, passed as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onecurve.describe.cluster import Cluster
from onecurve.describe.plan import Plan, Precision


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Some steps of a job with a change, as `onecurve why --try` and `onecurve tune --range-test` make them."""

    steps: int
    """Number of the last step."""
    epoch_samples: int
    """Samples of an epoch; 0 if the data has no end."""
    job: dict[str, float | str] = field(default_factory=dict)
    """Fields of the job that are changed; `save_every` and `evaluate_every` stand for those of its parts."""
    lr_factor: float = 0.0
    """Factor of the learning rate in the first step, which grows to 1 in the last one; 0: the job's own schedule."""
    pause: str = ""
    """`checkpoint` or `evaluation`, if the trial is about that; otherwise it makes neither."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """`onecurve run`."""

    script: str
    arguments: tuple[str, ...]
    out: str
    fresh: bool
    quiet: bool
    track: tuple[str, ...] = ()
    """Names of trackers, besides those of the job."""
    metrics: int | None = None
    """Port at which values are served to Prometheus; None: they are not."""
    check: bool = True
    """Prove the plan before training."""
    audit: int | None = None
    """One in this many steps is computed a second time; None: as the job says."""
    change: tuple[str, ...] = ()
    """Fields of the job that differ from those of the checkpoint that the run continues from."""
    verbose: bool = False
    begin: float = 0.0
    """When the command was started, in seconds since the epoch."""
    plan_seconds: float = 0.0
    """How long it took to find the plan; 0 if it was given."""
    trial: Trial | None = None
    """None: the run is not a trial."""


@dataclass(frozen=True, kw_only=True)
class LoopRequest:
    """`onecurve run` of a script that has a training loop of its own."""

    program: str
    """The script. It is not called `script`, because it must not be imported beforehand: that would run it."""
    arguments: tuple[str, ...]
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """`onecurve check`."""

    script: str
    arguments: tuple[str, ...]
    plans: tuple[Plan, ...]
    """Empty: the matrix of plans for worlds of up to `ranks`."""
    ranks: int
    steps: int
    precision: Precision
    quiet: bool
    verbose: bool = False
    folder: str = ""
    """Folder of the launcher for what the check finds; empty if the ranks were started by somebody else."""
    checkpoints: str = ""
    """Where the checkpoints of a run are."""
    checkpoint: str = ""
    """Name of the checkpoint with the weights to begin with; empty: those of the constructor."""


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """`onecurve probe`."""

    quiet: bool


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """A plan of a job."""

    script: str
    arguments: tuple[str, ...]
    precisions: tuple[Precision, ...]
    """What the plan may compute in."""
    cluster: Cluster | None = None
    """The hosts to plan for; None: this host."""


@dataclass(frozen=True, kw_only=True)
class CalibrationRequest:
    """Seconds of a step, as predicted and as measured on this host."""

    predicted: float
    measured: float


@dataclass(frozen=True, kw_only=True)
class RegistrationRequest:
    """What the other hosts of a run must know about this one."""

    name: str
    address: str
    script: str = ""
    """Defines the job; empty if there is none."""
    arguments: tuple[str, ...] = ()
    job: dict[str, str] = field(default_factory=dict)
    """What must be the same on all hosts, if no script defines a job."""
    measures: bool = False
    """Measure the devices if they never were, as a plan needs it."""


@dataclass(frozen=True, kw_only=True)
class InferenceRequest:
    """`onecurve evaluate` and `oc.predict`."""

    script: str
    arguments: tuple[str, ...]
    checkpoints: str
    """Where the checkpoints of the run are."""
    checkpoint: str
    """Name of the checkpoint."""
    plan: Plan
    code: Mapping[str, str] = field(default_factory=dict)
    """Hashes of the code that the run has trained; empty if it is not compared."""
    data: str = ""
    """File with the dataset to compute outputs for; the outputs of a rank go to the same name and its number."""
