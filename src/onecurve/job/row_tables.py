"""What a training step asks of embedding tables, wherever their rows are."""

from typing import Protocol

from torch import Tensor


class RowTables(Protocol):
    """The embedding tables of a model on one rank. The ranks call its methods together."""

    def begin_step(self) -> None:
        """Forget what forwards outside of steps have left."""

    def end_round(self, divisor: float) -> None:
        """Add the gradients of a round, divided by a number, to those of the step."""

    def reduce(self) -> Tensor:
        """Sum the gradients over the ranks; return the sum of the squares that this rank counts, in float64."""

    def update(self, factor: float, lr_factor: float) -> None:
        """Update the rows. `factor`: of all gradients, as for the parameters; `lr_factor`: the schedule's."""

    def skip(self) -> None:
        """Drop the gradients of the step, because it was not finite. Each step ends with `update` or `skip`."""
