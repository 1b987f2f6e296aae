"""What train/ needs of a rank's part of the model, whatever axes it was split along. Objects of apply/ satisfy it."""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from onecurve.device.collectives import Group
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor
from onecurve.job.batch import MicroBatch, Objective


class Part(Protocol):
    """What one rank holds and runs of the model."""

    @property
    def device(self) -> Device: ...

    @property
    def group(self) -> Group:
        """All ranks that train this model together."""

    @property
    def peers(self) -> Group:
        """Those of them that hold parts of the same parameters."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def trained(self) -> Sequence[LocalTensor]:
        """The parameters that are trained, ties once."""

    @property
    def reports(self) -> bool:
        """Whether this rank speaks for its samples: of the ranks that hold parts of one copy, one does."""

    def run_rounds(
        self, rounds: Sequence[MicroBatch], objective: Objective, scale: float, seeds: Sequence[int]
    ) -> Tensor:
        """Forward and backward of all rounds of one step on `sum × scale`.

        Leaves in the gradient of every trained piece the sum over all ranks and rounds; returns this rank's
        [sum, count]. `seeds` are what the model's own randomness is keyed by, one per round.
        """

    def place(self, micro: MicroBatch) -> MicroBatch:
        """The micro-batch on the device and in the precision that the model takes."""

    def infer(self, micro: MicroBatch) -> Any:
        """The model's output for a placed micro-batch, in evaluation mode, without gradients."""

    def restore_batch_norm(self, where: Tensor | bool) -> None:
        """Leave no trace of the step in batch norm's running statistics, if `where`."""

    def clear_gradients(self) -> None: ...
