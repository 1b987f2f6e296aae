"""Results of `onecurve run` and `onecurve export`."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from onecurve.describe.errors import SignalName
from onecurve.describe.record import EvaluationRecord

Ending = Literal["finished", "early_stopping"] | SignalName
"""How a run ended: after its last step, because evaluations no longer improved, or interrupted by a signal.

`SIGKILL`: the process that had started the ranks was gone, so the ranks stopped by themselves.
"""


@dataclass(frozen=True)
class BestEvaluation:
    """The best evaluation of a run."""

    watch: str
    """`loss`, or the name of a metric."""
    value: float
    step: int
    """Steps done when it was measured."""


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
    """How a run ended; the content of summary.json. Version 1 of the file counted steps from 0."""

    file_version: ClassVar[int] = 2

    out: str
    """The run's folder."""
    plan: str
    """Short text form of the plan."""
    ranks: int
    steps: int
    """Steps done."""
    steps_planned: int
    ended: Ending
    loss: float
    """Loss of the last step."""
    evaluation: EvaluationRecord | None
    """The last evaluation."""
    best: BestEvaluation | None
    """None if no evaluation had a finite value."""
    best_weights: str | None
    """File with the weights of the best evaluation; None if there is none. Those of the last step are in
    `weights.safetensors`."""
    seconds: float
    """Wall time of this process, from start to end."""
    samples_per_second: float
    step_seconds: float = 0.0
    """Median time of the latest steps, without evaluations and checkpoints."""
    test: EvaluationRecord | None = None
    """The evaluation on the test data, at the end; None if there is none, or the run ended before."""
    predicted_step_seconds: float | None = None
    """None if the run was not planned by `onecurve run`."""
    first_step: int = 0
    """Steps that were done before this process began; `seconds` does not include them."""

    @property
    def signal(self) -> SignalName | None:
        """The signal that ended the run before it was done, or None if none did."""
        return self.ended if self.ended != "finished" and self.ended != "early_stopping" else None

    @property
    def interrupted(self) -> bool:
        """True if a signal ended the run before it was done; started again, it continues."""
        return self.signal is not None
