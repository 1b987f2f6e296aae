"""Results of `onecurve run` and `onecurve export`."""

from dataclasses import dataclass
from typing import ClassVar

from onecurve.describe.record import EvaluationRecord


@dataclass(frozen=True)
class BestEvaluation:
    """The best evaluation of a run."""

    watch: str
    """`loss`, or the name of a metric."""
    value: float
    step: int
    """Counted from 0."""


@dataclass(frozen=True, kw_only=True)
class ExportSummary:
    """What `onecurve export` wrote."""

    file_version: ClassVar[int] = 1

    source: str
    """The checkpoint that the weights come from."""
    step: int
    """Steps that the checkpoint had done."""
    path: str
    tensors: int
    bytes: int
    loss: float | None = None
    """Evaluation loss of the original weights, if the export changes values and the job has evaluation data."""
    exported_loss: float | None = None
    """Evaluation loss of the exported weights."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """How a run ended; the content of summary.json."""

    file_version: ClassVar[int] = 1

    out: str
    """The run's folder."""
    plan: str
    """Short text form of the plan."""
    ranks: int
    steps: int
    """Steps done."""
    steps_planned: int
    loss: float
    """Loss of the last step."""
    evaluation: EvaluationRecord | None
    """The last evaluation."""
    best: BestEvaluation | None
    seconds: float
    """Wall time of this process, from start to end."""
    samples_per_second: float
    step_seconds: float = 0.0
    """Median time of the latest steps, without evaluations and checkpoints."""
    predicted_step_seconds: float | None = None
    """None if the run was not planned by `onecurve run`."""
