"""The rows of a piece on a server, with all that is needed to take the latest steps away again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import torch
from torch import Tensor

from onecurve.params.exchange import sum_by_id
from onecurve.params.row_store import RowStore, squares_by_slot
from onecurve.params.slots import slots_of
from onecurve.params.step_log import ReadyStep
from onecurve.params.table_holder import Gradients


@dataclass(frozen=True)
class StoredRows:
    """Rows of one table, all or some of them."""

    ids: Tensor
    values: Tensor
    """The rows, with their states."""
    changed_in: Tensor
    """The steps in which they were changed last."""

    def divided(self, slot: int) -> "tuple[StoredRows, StoredRows]":
        """The rows of slots before this one, and the others."""
        is_after = slots_of(self.ids) >= slot
        return self.where(~is_after), self.where(is_after)

    def where(self, chosen: Tensor) -> "StoredRows":
        return StoredRows(self.ids[chosen], self.values[chosen], self.changed_in[chosen])

    @staticmethod
    def joined(parts: "Sequence[StoredRows]") -> "StoredRows":
        ids, values, changed_in = ([getattr(part, name) for part in parts] for name in ("ids", "values", "changed_in"))
        return StoredRows(torch.cat(ids), torch.cat(values), torch.cat(changed_in))


@dataclass
class UndoRecord:
    """What brings the rows back to a step: all that was changed since, as it was then.

    If there is a record of a later step, it has what was changed since that one.
    """

    step: int
    updates: int
    """Those that the rows had had."""
    tables: dict[str, list[StoredRows]] = field(default_factory=dict)

    def take_over(self, later: "UndoRecord") -> None:
        """Take in the record of a later step, to which the rows will not go back."""
        for name, parts in later.tables.items():
            for stored in parts:
                self.tables.setdefault(name, []).append(stored.where(stored.changed_in <= self.step))

    def compacted(self) -> "UndoRecord":
        tables = {name: [StoredRows.joined(parts)] for name, parts in self.tables.items()}
        return UndoRecord(self.step, self.updates, tables)


@dataclass(frozen=True)
class PieceContents:
    """A copy of a piece."""

    tables: Mapping[str, StoredRows]
    applied: int
    updates: int
    points: tuple[int, ...]
    records: Sequence[UndoRecord]


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
    applied: int = 0
    """The newest step that was added."""
    updates: int = 0
    """Updates so far; skipped steps do not count."""
    records: list[UndoRecord] = field(default_factory=list)
    """Of the steps that the rows can go back to, in order."""
    points: tuple[int, ...] = ()
    """The steps that they must be able to go back to, also such as have not been added yet."""
    sums: dict[int, tuple[Gradients, Tensor]] = field(default_factory=dict)
    """By step: gradients summed over the ranks, of steps that will be added soon, and their squares."""

    @staticmethod
    def of(stores: Mapping[str, RowStore], slots: range, contents: object) -> "ServedRows":
        """Rows without any step, or those of a copy, which may be decoded from a message."""
        rows = ServedRows(slots=slots, stores=stores)
        if contents is None:
            return rows
        copy = msgspec.convert(contents, PieceContents, from_attributes=True)
        for name, stored in copy.tables.items():
            stores[name].put_values(stored.ids, stored.values, stored.changed_in)
        rows.applied, rows.updates, rows.records = copy.applied, copy.updates, [*copy.records]
        rows.points = copy.points
        return rows

    def add(self, step: ReadyStep[Gradients]) -> None:
        sums, _ = self.sums.pop(step.step, (None, None))
        if not step.verdict.is_skipped:
            parts = sums or self._summed(step.parts)
            self._record(parts)
            self.updates = step.verdict.updates if step.verdict.is_load else self.updates + 1
            for name, (ids, lines) in parts.items():
                store = self.stores[name]
                store.epoch = step.step
                if step.verdict.is_load:
                    store.put_values(ids, lines)
                    continue
                rate = store.table.optimizer.lr * step.verdict.lr_factor
                store.update(ids, lines * step.verdict.factor, rate, self.updates)
        self.applied = step.step
        self._begin_record()
        slot = self.slots.start + step.step % len(self.slots)
        for store in self.stores.values():
            store.free(slot, self.records[0].updates if self.records else self.updates)

    def _record(self, parts: Gradients) -> None:
        """Keep what rows are now that have not changed since the newest record began."""
        if not self.records:
            return
        newest = self.records[-1]
        for name, (ids, _) in parts.items():
            store = self.stores[name]
            changed_in = store.epochs(ids)
            is_first = changed_in <= newest.step
            if bool(is_first.any()):
                first = ids[is_first]
                newest.tables.setdefault(name, []).append(StoredRows(first, store.values(first), changed_in[is_first]))

    def _begin_record(self) -> None:
        if self.applied in self.points and not any(record.step == self.applied for record in self.records):
            self.records.append(UndoRecord(self.applied, self.updates))

    def keep(self, points: Sequence[int]) -> None:
        if points and self.points and max(points) < max(self.points):
            return  # it comes late
        self.points = tuple(points)
        kept: list[UndoRecord] = []
        for record in self.records:
            if record.step in points:
                kept.append(record)
            elif kept:  # what it has is needed to go back further
                kept[-1].take_over(record)
        self.records = kept
        self._begin_record()

    def begin_crew(self, step: int) -> None:
        self.sums.clear()
        self.points = tuple(point for point in self.points if point <= step)
        self.records = [record for record in self.records if record.step <= step]

    def can_go_back(self, step: int) -> bool:
        return any(record.step == step for record in self.records)

    def go_back(self, step: int) -> None:
        while True:
            last = self.records.pop()
            for name, parts in last.tables.items():
                for stored in reversed(parts):
                    self.stores[name].put_values(stored.ids, stored.values, stored.changed_in)
            if last.step == step:
                break
        self.applied, self.updates = last.step, last.updates
        self._begin_record()

    def get(self, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name in ids:
            self.stores[name].updates = self.updates
        return {name: self.stores[name].get(wanted) for name, wanted in ids.items()}

    def squares(self, step: int, parts: Sequence[Gradients]) -> Tensor:
        """One number per slot, so that their sum does not depend on the pieces. All ranks are told the same."""
        if step not in self.sums:
            sums, squares = self._summed(parts), torch.zeros(len(self.slots), dtype=torch.float64)
            for name in sorted(sums):
                squares += squares_by_slot(*sums[name], self.slots)
            self.sums[step] = sums, squares
        return self.sums[step][1]

    def copy(self) -> PieceContents:
        tables = {name: _stored(store, store.in_slots(self.slots)) for name, store in self.stores.items()}
        self.records = [record.compacted() for record in self.records]
        records = [record.compacted() for record in self.records]
        return PieceContents(tables, self.applied, self.updates, self.points, records)

    def read(self, slots: tuple[int, int], since: int, limit: int, tables: Sequence[str]) -> RowsRead:
        begin, end = max(slots[0], self.slots.start), min(slots[1], self.slots.stop)
        found: dict[str, tuple[RowStore, Tensor, Tensor]] = {}
        sizes = torch.zeros(end - begin, dtype=torch.int64)
        counts: dict[str, tuple[int, int]] = {}
        for name, store in ((name, self.stores[name]) for name in tables):
            held = store.in_slots(range(begin, end))
            positions = held[store.changed_in(held) >= since]
            counts[name] = positions.numel(), held.numel()
            of_rows = slots_of(store.ids_at(positions)) - begin
            sizes += of_rows.bincount(minlength=end - begin) * store.row_bytes
            found[name] = store, positions, of_rows
        # At least one slot, so that whoever reads comes to an end.
        fitting = max(1, int((sizes.cumsum(0) <= limit).sum())) if limit else 0
        stored = {
            name: _stored(store, positions[of_rows < fitting]) for name, (store, positions, of_rows) in found.items()
        }
        return RowsRead(stored, begin + fitting, counts)

    def drop(self) -> None:
        for store in self.stores.values():
            store.drop(self.slots)

    def split(self, slot: int) -> "ServedRows":
        other = replace(self, slots=range(slot, self.slots.stop), records=[], sums={})
        self.sums.clear()
        self.slots = range(self.slots.start, slot)
        for number, record in enumerate([each.compacted() for each in self.records]):
            divided = {name: parts[0].divided(slot) for name, parts in record.tables.items()}
            first, second = (
                UndoRecord(record.step, record.updates, {name: [both[side]] for name, both in divided.items()})
                for side in (0, 1)
            )
            self.records[number] = first
            other.records.append(second)
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
    ids = store.ids_at(positions)
    return StoredRows(ids, store.values(ids), store.changed_in(positions))
