"""The rows of a table whose rows are admitted or evicted.

A row has two more numbers after the state of its optimizer: how many updates its id has had (`admit_after`), and the
number of the update that was its last (`evict_after`). Whether it counts is a function of these numbers and of the
updates so far, so it does not matter when the memory of a row that does not count is freed: all copies, checkpoints and
placements agree. Of ids that are not admitted yet, only these numbers are kept in memory.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from onecurve.describe.slots import SLOTS
from onecurve.job.initial_rows import initial_rows
from onecurve.job.row_limits import RowLimits
from onecurve.job.row_optimizer import SGD, RowOptimizer
from onecurve.params.row_store import RowStore, Spill, StoredTable

_CANDIDATES = 1 << 40
"""Positions from here on are those of ids that are not admitted."""

At = Callable[[Tensor], Tensor]
"""Positions → what is there."""


class _Candidates:
    """The table of ids that are not admitted, as a store knows it."""

    optimizer: RowOptimizer = SGD()
    limits = RowLimits()

    def __init__(self, table: StoredTable) -> None:
        self.table, self.width = f"{table.table}.candidates", table.limits.columns


class LimitedStore(RowStore):
    """To others, ids that are not admitted are rows with their first values."""

    def __init__(
        self, table: StoredTable, seed: int, dtype: torch.dtype, share: float = 1.0, spill: Spill | None = None
    ) -> None:
        self._seed, self._limits = seed, table.limits
        self._candidates = RowStore(_Candidates(table), seed, dtype, share)
        super().__init__(table, seed, dtype, share, spill)

    def __len__(self) -> int:
        return self.in_slots(range(SLOTS)).numel()

    def clear(self) -> None:
        super().clear()
        self._candidates.clear()

    # By id

    def get(self, ids: Tensor) -> Tensor:
        rows = super().get(ids)
        if self._limits.evict_after is not None:
            expired = self._expired(super().values(ids), self.updates)
            if bool(expired.any()):
                rows[expired] = self._first(ids[expired])
        return rows

    def values(self, ids: Tensor) -> Tensor:
        values = super().values(ids)
        missing = ~self.has(ids)
        if bool(missing.any()):
            others = ids[missing]
            numbers = self._candidates.values(others)[:, : self._limits.columns]
            numbers[~self._candidates.has(others)] = 0
            values[missing, -self._limits.columns :] = numbers
        return values

    def epochs(self, ids: Tensor) -> Tensor:
        return torch.where(self.has(ids), super().epochs(ids), self._candidates.epochs(ids))

    def update(self, ids: Tensor, gradients: Tensor, lr: float, updates: int) -> None:
        self.updates = updates
        values = self.values(ids)
        expired = self._expired(values, updates - 1)
        if bool(expired.any()):
            values[expired] = 0
            values[expired, : self.table.width] = self._first(ids[expired])
        is_admitted = torch.ones(ids.numel(), dtype=torch.bool)
        if self._limits.counts:
            values[:, self._count_column] += 1
            is_admitted = values[:, self._count_column] >= self._limits.admit_after
        if self._limits.evict_after is not None:
            values[:, -1] = updates
        self.put_values(ids, values)
        if bool(is_admitted.any()):
            super().update(ids[is_admitted], gradients[is_admitted], lr, updates)

    def _put(self, ids: Tensor, values: Tensor, epochs: Tensor) -> None:
        has_row = torch.ones(ids.numel(), dtype=torch.bool)
        if self._limits.counts:
            has_row = self.has(ids) | (values[:, self._count_column] >= self._limits.admit_after)
        if bool(has_row.any()):
            super()._put(ids[has_row], values[has_row], epochs[has_row])
        if not bool(has_row.all()):
            numbers = values[~has_row, -self._limits.columns :]
            self._candidates.put_values(ids[~has_row], numbers, epochs[~has_row])

    # By position

    def ids_at(self, positions: Tensor) -> Tensor:
        return self._of_both(positions, super().ids_at, self._candidates.ids_at)

    def changed_in(self, positions: Tensor) -> Tensor:
        return self._of_both(positions, super().changed_in, self._candidates.changed_in)

    def contents(self, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ids = self.ids_at(order)
        rows, states = self.values(ids).split([self.table.width, self._states], dim=1)  # type: ignore[no-untyped-call]
        return ids, rows.contiguous(), states.contiguous()

    def changed_since(self, epoch: int) -> Tensor:
        return torch.cat([super().changed_since(epoch), self._unadmitted(self._candidates.changed_since(epoch))])

    def in_slots(self, slots: range) -> Tensor:
        return torch.cat([super().in_slots(slots), self._unadmitted(self._candidates.in_slots(slots))])

    def drop(self, slots: range) -> None:
        super().drop(slots)
        self._candidates.drop(slots)

    def free(self, slot: int, updates: int) -> None:
        """Free the memory of rows in a slot that do not count any longer, also if the rows go back to when there were
        so many updates."""
        one = range(slot, slot + 1)
        kept = self.ids_at(self.in_slots(one))
        values = self.values(kept)
        counts = ~self._expired(values, updates)
        held = super().in_slots(one).numel() + self._candidates.in_slots(one).numel()
        if int(counts.sum()) == held:
            return
        epochs = self.epochs(kept)
        self.drop(one)
        self._put(kept[counts], values[counts], epochs[counts])

    @property
    def _count_column(self) -> int:
        return -self._limits.columns

    def _expired(self, values: Tensor, updates: int) -> Tensor:
        """True for rows that do not count in the next update, after so many."""
        if self._limits.evict_after is None:
            return torch.zeros(values.shape[0], dtype=torch.bool)
        newest = values[:, -1]
        return (newest > 0) & (updates + 1 - newest > self._limits.evict_after)

    def _first(self, ids: Tensor) -> Tensor:
        return initial_rows(self._seed, self.table.table, ids, self.table.width, self.dtype)

    def _unadmitted(self, positions: Tensor) -> Tensor:
        """Those of candidates that have no row since."""
        return positions[~self.has(self._candidates.ids_at(positions))] + _CANDIDATES

    def _of_both(self, positions: Tensor, of_rows: At, of_candidates: At) -> Tensor:
        is_row = positions < _CANDIDATES
        rows, others = of_rows(positions[is_row]), of_candidates(positions[~is_row] - _CANDIDATES)
        found = torch.empty(positions.numel(), dtype=rows.dtype)
        found[is_row], found[~is_row] = rows, others
        return found
