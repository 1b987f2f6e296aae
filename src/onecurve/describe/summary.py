"""How a run ended."""

from dataclasses import dataclass

from onecurve.describe.record import EvaluationRecord


@dataclass(frozen=True)
class BestEvaluation:
    watch: str
    """The loss, or a metric's name."""
    value: float
    step: int


@dataclass(frozen=True)
class ExportSummary:
    """What was exported, from where to where."""

    source: str
    step: int
    path: str
    tensors: int
    bytes: int
    loss: float | None = None
    """Of an evaluation, before; where the export changes numbers and the job has data to evaluate on."""
    exported_loss: float | None = None
    """The same after."""


@dataclass(frozen=True)
class RunSummary:
    """How a run ended; also in the run folder."""

    out: str
    plan: str
    ranks: int
    steps: int
    """Steps done."""
    steps_planned: int
    loss: float
    """Of the last step."""
    evaluation: EvaluationRecord | None
    """The last."""
    best: BestEvaluation | None
    seconds: float
    samples_per_second: float
    step_seconds: float = 0.0
    """A step's, without evaluation and saving: the median of the last ones."""
    predicted_step_seconds: float | None = None
    """Where the run was planned here."""
