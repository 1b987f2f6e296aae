"""Records of a run: one line of JSON per step or event. Each rank writes its own file.

Every record has the number of its generation. After a failure steps can be done twice; the later generation counts.
"""

from dataclasses import dataclass, field

RECORD_VERSION = 2
"""Version of the record format; a file of records begins with a StartRecord, which carries it.

Version 1 counted steps from 0.
"""


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
    version: int = RECORD_VERSION
    generation: int = 1
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
    """Seconds by cause. They add up to the time since the previous step ended."""
    memory: int = 0
    """The most bytes of its device that this rank has used so far; on a CPU, of the host's memory."""
    skipped_samples: int = 0
    """Samples of this rank's share that were left out: bad ones, and those that a filter drops."""
    loader_processes: int = 0
    """Processes that read data for this rank."""
    generation: int = 1
    kind: str = "step"


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
    kind: str = "evaluation"
    """`test` for the one on the test data."""


@dataclass(frozen=True)
class EventRecord:
    """Anything else worth knowing about a run."""

    event: str
    """One of `proved`, `warning`, `resumed`, `changed`, `saved`, `snapshots`, `stopped`, `cache`."""
    text: str
    generation: int = 1
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
    kind: str = "generation"


Record = StartRecord | StepRecord | EvaluationRecord | EventRecord | GenerationRecord
