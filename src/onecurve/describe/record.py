"""Records of a run: one line of JSON per step or event. Each rank writes its own file."""

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
    kind: str = "evaluation"


@dataclass(frozen=True)
class EventRecord:
    """Anything else worth knowing about a run."""

    event: str
    """One of `proved`, `warning`, `resumed`, `changed`, `saved`, `stopped`."""
    text: str
    kind: str = "event"


Record = StartRecord | StepRecord | EvaluationRecord | EventRecord
