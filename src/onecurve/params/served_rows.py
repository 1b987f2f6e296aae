"""The rows of a piece on a server, with all that is needed to take the latest steps away again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import torch
from torch import Tensor

from onecurve.params.exchange import sum_by_id
from onecurve.params.row_store import RowStore
from onecurve.params.slots import slots_of
from onecurve.params.step_log import ReadyStep
from onecurve.params.table_holder import Gradients


@dataclass(frozen=True)
class DoneStep:
    """A step that was added to the rows, and can be taken away."""

    ready: ReadyStep[Gradients]
    updates: int
    """Those before it."""
    values: Mapping[str, tuple[Tensor, Tensor]]
    """By table: ids of the rows that it has changed, and what they were before, with their states."""


@dataclass(frozen=True)
class StoredRows:
    """Rows of one table, all or some of them."""

    ids: Tensor
    values: Tensor
    """The rows, with their states."""
    changed_in: Tensor
    """The steps in which they were changed last."""


@dataclass(frozen=True)
class PieceContents:
    """A copy of a piece."""

    tables: Mapping[str, StoredRows]
    updates: int
    done: Sequence[DoneStep]


@dataclass(frozen=True)
class RowsRead:
    """What a rank gets that reads rows to save them."""

    tables: Mapping[str, StoredRows]
    end: int
    """The first slot that it has not got."""
    counts: Mapping[str, tuple[int, int]]
    """By table, of all slots that it has asked for: rows that have changed, and all rows."""


@dataclass
class ServedRows:
    """The rows of some slots. The pieces of a server share its stores, one for each table."""

    slots: range
    stores: Mapping[str, RowStore]
    updates: int = 0
    """Updates so far; skipped steps do not count."""
    done: list[DoneStep] = field(default_factory=list)
    """The latest steps."""
    sums: dict[int, Gradients] = field(default_factory=dict)
    """By step: gradients summed over the ranks, of steps that will be added soon."""

    @staticmethod
    def of(stores: Mapping[str, RowStore], slots: range, contents: object) -> "ServedRows":
        """Rows without any step, or those of a copy, which may be decoded from a message."""
        rows = ServedRows(slots, stores)
        if contents is None:
            return rows
        copy = msgspec.convert(contents, PieceContents, from_attributes=True)
        for name, stored in copy.tables.items():
            stores[name].put_values(stored.ids, stored.values, stored.changed_in)
        rows.updates, rows.done = copy.updates, [*copy.done]
        return rows

    def add(self, step: ReadyStep[Gradients]) -> None:
        sums = self.sums.pop(step.step, None)
        changed: dict[str, tuple[Tensor, Tensor]] = {}
        updates = self.updates
        if not step.verdict.is_skipped:
            self.updates = step.verdict.updates if step.verdict.is_load else self.updates + 1
            for name, (ids, lines) in (sums or self._summed(step.parts)).items():
                store = self.stores[name]
                store.epoch = step.step
                changed[name] = ids, store.values(ids)
                if step.verdict.is_load:
                    store.put_values(ids, lines)
                    continue
                rate = store.table.optimizer.lr * step.verdict.lr_factor
                store.update(ids, lines * step.verdict.factor, rate, self.updates)
        self.done.append(DoneStep(step, updates, changed))

    def can_go_back(self, step: int) -> bool:
        return any(done.ready.step == step + 1 for done in self.done)

    def go_back(self, step: int) -> Sequence[ReadyStep[Gradients]]:
        self.sums.clear()
        undone: list[ReadyStep[Gradients]] = []
        while self.done and self.done[-1].ready.step > step:
            last = self.done.pop()
            self.updates = last.updates
            for name, (ids, values) in last.values.items():
                self.stores[name].put_values(ids, values)
            undone.insert(0, last.ready)
        return undone

    def forget(self, step: int) -> None:
        while self.done and self.done[0].ready.step <= step:
            self.done.pop(0)

    def get(self, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: self.stores[name].get(wanted) for name, wanted in ids.items()}

    def squares(self, step: int, parts: Sequence[Gradients]) -> Tensor:
        """One number per slot, so that their sum does not depend on the pieces."""
        if step not in self.sums:
            self.sums[step] = self._summed(parts)
        total = torch.zeros(len(self.slots), dtype=torch.float64)
        for name in sorted(self.sums[step]):
            ids, gradients = self.sums[step][name]
            of_rows = gradients.double().square().sum(1)
            total += torch.bincount(slots_of(ids) - self.slots.start, of_rows, minlength=len(self.slots))
        return total

    def copy(self) -> PieceContents:
        tables = {name: _stored(store, store.in_slots(self.slots)) for name, store in self.stores.items()}
        return PieceContents(tables, self.updates, [*self.done])

    def read(self, slots: tuple[int, int], since: int, limit: int) -> RowsRead:
        begin, end = max(slots[0], self.slots.start), min(slots[1], self.slots.stop)
        found: dict[str, tuple[RowStore, Tensor, Tensor]] = {}
        sizes = torch.zeros(end - begin, dtype=torch.int64)
        counts: dict[str, tuple[int, int]] = {}
        for name, store in self.stores.items():
            held = store.in_slots(range(begin, end))
            positions = held[store.changed_in(held) >= since]
            counts[name] = positions.numel(), held.numel()
            of_rows = slots_of(store.ids[positions]) - begin
            sizes += of_rows.bincount(minlength=end - begin) * store.row_bytes
            found[name] = store, positions, of_rows
        # At least one slot, so that whoever reads comes to an end.
        fitting = max(1, int((sizes.cumsum(0) <= limit).sum())) if limit else 0
        tables = {
            name: _stored(store, positions[of_rows < fitting]) for name, (store, positions, of_rows) in found.items()
        }
        return RowsRead(tables, begin + fitting, counts)

    def drop(self) -> None:
        for store in self.stores.values():
            store.drop(self.slots)

    def split(self, slot: int) -> "ServedRows":
        other = ServedRows(range(slot, self.slots.stop), self.stores, self.updates)
        for number, step in enumerate(self.done):
            parts = [self.divide(part, slot) for part in step.ready.parts]
            values = self.divide(step.values, slot)
            first, second = (
                DoneStep(
                    ReadyStep(step.ready.step, tuple(part[side] for part in parts), step.ready.verdict),
                    step.updates,
                    values[side],
                )
                for side in (0, 1)
            )
            self.done[number] = first
            other.done.append(second)
        self.slots = range(self.slots.start, slot)
        self.sums.clear()
        return other

    def divide(self, part: Gradients, slot: int) -> tuple[Gradients, Gradients]:
        """The lines of slots before this one, and the others."""
        before: dict[str, tuple[Tensor, Tensor]] = {}
        after: dict[str, tuple[Tensor, Tensor]] = {}
        for name, (ids, lines) in part.items():
            is_after = slots_of(ids) >= slot
            before[name] = ids[~is_after], lines[~is_after]
            after[name] = ids[is_after], lines[is_after]
        return before, after

    def _summed(self, parts: Sequence[Gradients]) -> Gradients:
        """Gradients by table, summed over the ranks in their order."""
        by_table: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for part in parts:
            for name, (ids, gradients) in part.items():
                by_table.setdefault(name, []).append((ids, gradients))
        return {name: sum_by_id(of_ranks) for name, of_ranks in by_table.items()}


def _stored(store: RowStore, positions: Tensor) -> StoredRows:
    ids = store.ids[positions]
    return StoredRows(ids, store.values(ids), store.changed_in(positions))
