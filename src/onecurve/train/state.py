"""The state of a training besides its tensors: all that a checkpoint has to restore."""

from dataclasses import dataclass

from onecurve.describe.change import JobChange
from onecurve.describe.errors import OnecurveError
from onecurve.job.row_point import RowPoint

_MAX_COUNT = 1 << 60


@dataclass(frozen=True)
class BestState:
    """The best evaluation so far, and how long ago it was."""

    watch: str
    """`loss`, or the name of a metric."""
    better: str
    """`lower` or `higher`."""
    value: float | None = None
    """None if no evaluation had a finite value yet."""
    step: int = 0
    """Steps done when it was measured."""
    evaluations_since: int = 0
    """Evaluations that did not improve on it."""


@dataclass(frozen=True)
class TrainState:
    """Where a training stands. Data order, schedule and random numbers are functions of it."""

    step: int = 0
    """Steps done."""
    position: int = 0
    """Samples consumed."""
    loss: float | None = None
    """Loss of the last step; None before the first step or if it was not finite."""
    loss_scale: float = 1.0
    good_steps: int = 0
    """Finite steps since the loss scale last changed."""
    best: BestState | None = None
    """None if the job has no evaluation."""
    updates: int = 0
    """Updates of the embedding tables: steps that were not skipped. 0 if the model has none."""
    rows: RowPoint | None = None
    """Where the rows of embedding tables on servers stand; None if there are none."""
    changes: tuple[JobChange, ...] = ()
    """Fields of the job that were changed so far, oldest first."""

    def __post_init__(self) -> None:
        if not (0 <= self.step <= _MAX_COUNT and 0 <= self.position <= _MAX_COUNT):
            raise OnecurveError(f"train state: step = {self.step}, position = {self.position}; out of range")

    def samples_after(self, step: int, global_batch: int) -> int:
        """Samples consumed when `step` steps are done, if every step from here on takes `global_batch` samples."""
        return self.position + (step - self.step) * global_batch
