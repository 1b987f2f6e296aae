"""The interface between train/ and a rank's part of the model. The parts of apply/ implement it for all mesh axes."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn

from onecurve.device.collectives import Group
from onecurve.device.device import Device
from onecurve.device.gradient_hooks import GradientHooks
from onecurve.device.local_tensor import LocalTensor
from onecurve.job.batch import MicroBatch, Objective
from onecurve.job.row_tables import RowTables


class MeasuredParts(Protocol):
    """Measures the gradients of parts of a batch."""

    parts: int
    """Number of parts of a step, on all ranks."""

    def measured(self) -> AbstractContextManager[None]:
        """Measure the gradients of backward."""

    def take(self, like: Tensor) -> Tensor:
        """The sum of the squares of this rank's parts since `measured`, or 0; as a number like `like`."""


class GradientCapture(Protocol):
    """Hashes of the gradients that a rank's own samples contribute."""

    def captured(self, norms: bool = False) -> AbstractContextManager[None]:
        """Look at the gradients of backward before they are reduced. `norms`: also at their L2 norms."""

    def take(self) -> tuple[Tensor, Tensor, list[int]]:
        """The hashes of the trainable parameters' gradients since `captured`, their norms if they were wanted, and the
        order in which backward came to the parameters."""


class Restorable(Protocol):
    """What a forward may change, as it was at one moment."""

    def restore(self) -> None:
        """Set it to what it was. Raises an OnecurveError if a forward has changed what cannot be restored."""


class Part(Protocol):
    """The part of the model that one rank stores and runs."""

    @property
    def device(self) -> Device: ...

    @property
    def group(self) -> Group:
        """All ranks that train this model."""

    @property
    def peers(self) -> Group:
        """The ranks of `group` that store parts of the same parameters as this rank: those of one pipeline stage."""

    @property
    def data_group(self) -> Group:
        """The ranks that hold the same part of the model and process different samples, in the order of these."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def trainable(self) -> Sequence[LocalTensor]:
        """The parameters of this rank that require gradients; tied parameters occur once."""

    @property
    def reports_metrics(self) -> bool:
        """True if this rank adds the losses and metrics of its samples to the totals.

        Of the tensor and pipeline ranks that process the same samples, exactly one does.
        """

    def run_rounds(
        self, rounds: Sequence[MicroBatch], objective: Objective, scale: float, seeds: Sequence[int]
    ) -> Tensor:
        """Run forward and backward on `loss sum × scale` for all rounds of one step.

        Afterwards the gradient of every trainable parameter is the sum over all ranks and rounds. Returns this rank's
        [loss sum, count]. `seeds` has one random seed per round, for dropout and other random operations of the model.
        """

    def preview(self, rounds: Sequence[MicroBatch], seeds: Sequence[int]) -> list[Any]:
        """Return the outputs that `run_rounds` will compute, without gradients. Buffers stay as they are."""

    def place(self, micro: MicroBatch) -> MicroBatch:
        """Move a micro-batch to the device and convert it to the precision of the model's inputs."""

    def infer(self, micro: MicroBatch) -> Any:
        """Return the model's output in evaluation mode, without gradients, for a micro-batch from `place`."""

    def restore_buffers(self, where: Tensor | bool) -> None:
        """If `where` is true, reset the buffers that forward changes to their values before the step."""

    def forward_state(self, loss: Any) -> Restorable:
        """What the next `run_rounds` changes, except gradients. `loss`: the job's, which may change itself too."""

    def clear_gradients(self) -> None: ...

    def drop_gathered(self) -> None:
        """Free all-gathered parameters. Called after writing into local tensors, which makes the copies stale."""

    @property
    def gradient_hashes(self) -> GradientCapture:
        """Hashes of this rank's own gradients."""

    @property
    def part_squares(self) -> MeasuredParts | None:
        """Measures gradients of parts of a batch; None if that is not possible."""

    @property
    def gradient_hooks(self) -> Mapping[str, GradientHooks]:
        """The model's gradient hooks by parameter, on all ranks. The part does not run them."""

    @property
    def tables(self) -> RowTables | None:
        """The model's embedding tables; None if it has none."""
