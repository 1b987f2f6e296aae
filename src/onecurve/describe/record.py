"""What was measured: one line of JSON per step or event, each rank in a file of its own."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StartRecord:
    plan: str
    ranks: int
    device: str
    parameters: int
    steps: int
    predicted: dict[str, float] = field(default_factory=dict)
    """Seconds of a step by cause, where the run was planned here."""
    kind: str = "start"


@dataclass(frozen=True)
class StepRecord:
    step: int
    loss: float
    """Mean over the whole global batch, the same on all ranks."""
    count: float
    """What the mean was taken over: samples, or the true count that the loss reported (tokens)."""
    gradient_norm: float
    """Of the whole mean gradient, before clipping."""
    lr: float
    loss_scale: float
    """1 but for fp16."""
    samples: int
    """Position in the data after this step: samples consumed since the start."""
    skipped: bool
    """True where the loss or a gradient was not finite: the samples are consumed, nothing else changes."""
    seconds: dict[str, float]
    """By cause; they add up to the time since the step before."""
    kind: str = "step"


@dataclass(frozen=True)
class EvaluationRecord:
    step: int
    loss: float
    metrics: dict[str, float]
    samples: int
    seconds: float
    kind: str = "evaluation"


@dataclass(frozen=True)
class EventRecord:
    event: str
    """A word: `warning`, `stopped`."""
    text: str
    kind: str = "event"


Record = StartRecord | StepRecord | EvaluationRecord | EventRecord
