"""Who holds the rows of tables: the ranks themselves, or servers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from onecurve.describe.slots import SLOTS
from onecurve.params.slots import slots_of

Gradients = Mapping[str, tuple[Tensor, Tensor]]
"""By table: ids, which are distinct, and the gradients of their rows."""

ReadRows = Callable[[Sequence[str], range], Iterable[tuple[str, Tensor, Tensor, Tensor]]]
"""Names of tables and consecutive slots → rows that were saved: table, ids, rows, optimizer states."""


@dataclass(frozen=True)
class TableParts:
    """What one rank writes of one table."""

    ends: Tensor
    """For each slot, the number of rows in it and in all slots before."""
    ids: Tensor
    rows: Tensor
    states: Tensor

    @staticmethod
    def by_slot(ids: Tensor, rows: Tensor, states: Tensor) -> "TableParts":
        """Order rows by their slots."""
        order, ends = slot_order(ids)
        return TableParts(ends, ids[order], rows[order], states[order])


def slot_order(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the order of ids by their slots; and for each slot, the number of ids in it and in all slots before."""
    slots = slots_of(ids)
    return slots.argsort(stable=True), slots.bincount(minlength=SLOTS).cumsum(0)


@dataclass(frozen=True)
class RowCount:
    """Numbers of rows that one rank counts."""

    changed: int
    """Those that have changed since an epoch began."""
    total: int


class TableHolder(Protocol):
    """Holds the rows of some tables. The ranks call its methods together."""

    @property
    def tables(self) -> Sequence[str]: ...

    def fetch(self, table: str, ids: Tensor) -> Tensor:
        """Return the rows of these ids, which are distinct, wherever they are."""

    def begin_step(self) -> None: ...

    def close(self) -> None: ...

    def fetch_later(self, ids: Mapping[str, Tensor]) -> Callable[[], Mapping[str, Tensor]]:
        """Begin to fetch the rows of several tables, as they are now; return a function that waits for them."""

    def reduce(self, gradients: Gradients) -> Tensor:
        """Sum the gradients over the ranks; return the sum of the squares that this rank counts, in float64."""

    def send(self, gradients: Gradients) -> None:
        """Sum the gradients over the ranks, perhaps after this has returned."""

    def update(self, factor: float, lr_factor: float) -> None:
        """Update the rows with the gradients of the step."""

    def skip(self) -> None:
        """Drop the gradients of the step."""

    def count(self, table: str, since: int) -> RowCount:
        """Count rows. `since`: an epoch."""

    def begin_epoch(self) -> int:
        """Return the number of an epoch that begins now; later ones have higher numbers."""

    def parts_to_save(self, since: int) -> Iterator[tuple[str, TableParts]]:
        """Yield the name of each table, and what this rank writes of its rows that have changed since an epoch."""

    def load(self, base: ReadRows | None, newest: ReadRows, updates: int) -> int:
        """Replace all rows by saved ones: those of `newest`, and those of `base` that it leaves out. Return the number
        of the epoch in which those of `newest` count as changed. `updates`: those that the rows have had."""
