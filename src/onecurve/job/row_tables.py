"""What a training step asks of embedding tables, wherever their rows are."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from onecurve.job.batch import MicroBatch

Upcoming = Mapping[int, Sequence[MicroBatch]]
"""The rounds of the next steps, by step."""


class RowTables(Protocol):
    """The embedding tables of a model on one rank. The ranks call its methods together."""

    def begin_step(self, step: int, rounds: Sequence[MicroBatch], upcoming: Upcoming) -> None:
        """Forget what forwards outside of steps have left; fetch rows of later steps, if they may lack updates."""

    def end_round(self, divisor: float) -> None:
        """Add the gradients of a round, divided by a number, to those of the step."""

    def reduce(self) -> Tensor:
        """Sum the gradients over the ranks; return the sum of the squares that this rank counts, in float64."""

    def update(self, factor: float, lr_factor: float) -> None:
        """Update the rows. `factor`: of all gradients, as for the parameters; `lr_factor`: the schedule's."""

    def skip(self) -> None:
        """Drop the gradients of the step, because it was not finite. Each step ends with `update` or `skip`."""
