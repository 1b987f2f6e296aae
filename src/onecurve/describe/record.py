"""Records of a run: lines of JSON. Each rank writes its own file.

Rank 0 writes a line per step and event. The other ranks, whose losses are the same, write a line per interval of steps,
and the intervals grow with the run: their files stay small.

Every record has the time when it was written, in seconds since the epoch, and the number of its generation. After a
failure steps can be done twice; the later generation counts.
"""

from dataclasses import dataclass, field

RECORD_VERSION = 3
"""Version of the record format; a file of records begins with a StartRecord, which carries it.

Version 1 counted steps from 0. In versions 1 and 2 a step's seconds had fewer causes, every rank wrote a line per step,
and records had no time.
"""

FIRST_STEPS = 5
"""Steps at the beginning of a generation that every rank records one by one: they are slower than others."""
PAUSES = ("evaluation", "checkpoint", "audit")
"""Causes of a step's seconds that are no part of training it."""
WAITING = ("replicate", "shard", "tensor", "pipeline", "batch_norm", "tables", "sync")
"""Causes of a step's seconds in which a rank waits for others. What is left is the rank's own work."""


def own_seconds(seconds: dict[str, float]) -> float:
    """The seconds of a step in which a rank did not wait for others, without evaluations and checkpoints."""
    return sum(value for cause, value in seconds.items() if cause not in WAITING and cause not in PAUSES)


@dataclass(frozen=True)
class StartRecord:
    """Written when a process begins or resumes a run."""

    plan: str
    """Short text form of the plan."""
    ranks: int
    device: str
    """Kind of device, as torch names it."""
    parameters: int
    steps: int
    """Steps of the whole run."""
    predicted: dict[str, float] = field(default_factory=dict)
    """Predicted seconds of a step by cause; empty if the run was not planned by `onecurve run`."""
    peak_seconds: float = 0.0
    """Seconds of a step in which all devices compute the model's FLOPs at their peak: divided by a step's seconds, the
    model FLOPs utilization. 0 if it is not known, because the run was not planned by `onecurve run`."""
    version: int = RECORD_VERSION
    host: str = ""
    """Name of the host that this rank runs on."""
    host_cores: int = 0
    """CPU cores of that host that the run may use."""
    cores: int = 0
    """CPU cores that this rank uses."""
    threads: int = 0
    """Threads that one operation of this rank uses."""
    global_batch: int = 0
    epoch_samples: int = 0
    """Samples of an epoch; 0 if the data has no end."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by cause from the start of the command to the first step: `launch` (imports, starting the
    processes), `plan`, `job` (loading the script), `form` (the process group), `build` (this rank's part), `load` (the
    checkpoint). Only in the first generation."""
    generation: int = 1
    time: float = 0.0
    kind: str = "start"


@dataclass(frozen=True)
class StepRecord:
    """Written after each optimizer step."""

    step: int
    """Number of the step, counted from 1: optimizer steps done, skipped ones included."""
    loss: float
    """Mean over the whole global batch; equal on all ranks."""
    count: float
    """The denominator of that mean: samples, or the count that the loss returned (tokens, for example)."""
    gradient_norm: float
    """L2 norm of the mean gradient of the whole model, before clipping."""
    lr: float
    loss_scale: float
    """1 except under fp16."""
    samples: int
    """Samples consumed since the start of the run, this step included."""
    skipped: bool
    """True if the loss or a gradient was not finite: the samples are consumed, but the weights are not updated."""
    seconds: dict[str, float]
    """Seconds by cause. They add up to the time since the previous step ended.

    `data`: waiting for samples. `copy`: moving them to the device. `forward`, `backward`, `recompute`: computing.
    `replicate`, `shard`, `tensor`, `pipeline`: waiting for communication along an axis, and for the ranks that are late
    to it; a pipeline's bubble is in `pipeline`. `batch_norm`: the same for synchronized statistics. `sync`: waiting for
    all ranks at the end of the step. `tables`: rows of embedding tables. `update`: the optimizer. `evaluation` and
    `checkpoint`: done since the step before. `audit`: computing a share of the step a second time. `other`: anything
    else. On accelerators most steps are not timed: what is not known is in `step`.
    """
    memory: int = 0
    """The most bytes of its device that this rank has used so far; on a CPU, of the host's memory."""
    skipped_samples: int = 0
    """Samples of this rank's share that were left out: bad ones, and those that a filter drops."""
    loader_processes: int = 0
    """Processes that read data for this rank."""
    loading_seconds: float = 0.0
    """Seconds that it took to load this rank's samples of the step, in these processes together."""
    loading_cpu_seconds: float = 0.0
    """Of these, CPU time."""
    storage_seconds: float = 0.0
    """Of these, waiting for remote storage."""
    saving_cpu_seconds: float = 0.0
    """CPU time of the thread that writes checkpoints, since the step before."""
    cpu_seconds: float = 0.0
    """CPU time of the thread that trains. On a CPU it is less than the rank's own work if other programs take its
    cores; on accelerators it is not recorded."""
    parts: int = 0
    """Parts of the batch whose gradients were measured in this step, for the gradient noise scale; 0 in most steps."""
    part_square: float = 0.0
    """Mean over these parts of the squared L2 norm of a part's mean gradient."""
    generation: int = 1
    time: float = 0.0
    kind: str = "step"


@dataclass(frozen=True)
class IntervalRecord:
    """Written after several steps, by ranks other than 0."""

    step: int
    """Number of the last step of the interval."""
    steps: int
    """Steps of the interval."""
    seconds: dict[str, float]
    """Seconds by cause of all these steps, as in `StepRecord`."""
    deviation: float
    """Standard deviation, over the steps, of the seconds in which this rank did not wait for others."""
    loss: float = 0.0
    loss_scale: float = 1.0
    """Of the last step."""
    skipped: int = 0
    """Steps that were skipped, because the loss or a gradient was not finite."""
    memory: int = 0
    skipped_samples: int = 0
    loader_processes: int = 0
    loading_seconds: float = 0.0
    loading_cpu_seconds: float = 0.0
    storage_seconds: float = 0.0
    saving_cpu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    generation: int = 1
    time: float = 0.0
    kind: str = "interval"


@dataclass(frozen=True)
class MemoryRecord:
    """Written by every rank after the first step of a generation."""

    components: dict[str, int]
    """Bytes by component. They add up to `peak`: `weights`, `gradients`, `optimizer`, `process` (on a CPU, what the
    process used before it built its part) and `activations`, which is the rest."""
    peak: int
    """The most bytes of its device that this rank has used so far; on a CPU, of the host's memory."""
    generation: int = 1
    time: float = 0.0
    kind: str = "memory"


@dataclass(frozen=True)
class EvaluationRecord:
    """Written after each evaluation."""

    step: int
    """Steps done when the model was evaluated."""
    loss: float
    metrics: dict[str, float]
    samples: int
    """Samples evaluated, over all ranks."""
    seconds: float
    generation: int = 1
    time: float = 0.0
    kind: str = "evaluation"
    """`test` for the one on the test data."""


@dataclass(frozen=True)
class EventRecord:
    """Anything else worth knowing about a run."""

    event: str
    """One of `proved`, `warning`, `resumed`, `changed`, `saved`, `snapshots`, `stopped`, `cache`, `audit`."""
    text: str
    generation: int = 1
    time: float = 0.0
    kind: str = "event"


@dataclass(frozen=True, kw_only=True)
class GenerationRecord:
    """Written by rank 0 after the first step of a generation: one life of the process group."""

    generation: int
    hosts: int
    ranks: int
    plan: str
    """Short text form of the plan."""
    why: str
    """What ended the generation before, for a person; `start` in the first."""
    from_step: int
    """Steps that were done before this generation, as in the checkpoint that it continues from."""
    lost_steps: int
    """Steps that were done again, because they came after that checkpoint."""
    seconds: dict[str, float]
    """Seconds by cause: `detect`, `leave` (the generation before), `agree` (on this one), `form` (its process group),
    `build` (this rank's part), `load` (the checkpoint), `step` (the first)."""
    time: float = 0.0
    kind: str = "generation"


@dataclass(frozen=True)
class CodeLine:
    """A line of the user's code that a rank was executing when it was looked at."""

    place: str
    """File and line: `train.py:41`."""
    function: str
    text: str
    samples: int
    """How often it was found there."""


@dataclass(frozen=True)
class LinesRecord:
    """Written by rank 0 now and then: where it was in the user's code so far, in this generation."""

    samples: int
    """How often it was looked at."""
    lines: tuple[CodeLine, ...]
    """The most frequent ones."""
    generation: int = 1
    time: float = 0.0
    kind: str = "lines"


@dataclass(frozen=True)
class EndRecord:
    """Written when a process has ended its part of a run by itself: after the last step, or when it was stopped."""

    seconds: dict[str, float]
    """Seconds by cause since the last step: `evaluation`, `checkpoint`, `weights` (writing them), `test`."""
    generation: int = 1
    time: float = 0.0
    kind: str = "end"


@dataclass(frozen=True)
class ExitRecord:
    """Written when the command ends, after the processes that it has started."""

    begin: float
    """When the command was started, in seconds since the epoch."""
    generation: int = 1
    time: float = 0.0
    kind: str = "exit"


Record = (
    StartRecord
    | StepRecord
    | IntervalRecord
    | MemoryRecord
    | EvaluationRecord
    | EventRecord
    | GenerationRecord
    | LinesRecord
    | EndRecord
    | ExitRecord
)


@dataclass(frozen=True)
class TraceRecord:
    """The spans of one step of one rank; a line of a file of traces."""

    step: int
    begin: float
    """When the step began, in seconds since the epoch of this rank's clock."""
    spans: tuple[tuple[str, float, float], ...]
    """Cause, and seconds since the beginning of the step: begin and end."""
    end: float
    """When the ranks had exchanged the step's sums, in seconds since the beginning of the step. That is the same moment
    on all ranks, so clocks of hosts can be compared."""
    generation: int = 1
