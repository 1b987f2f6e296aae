"""The rows of embedding tables in a run's checkpoints: one has all of them, those after it the rows that changed since.

A checkpoint has all rows if none before it has, or if more than half of the rows have changed since the last one that
has: so one that has not has at most half of them. An epoch ends with each that has, see `TableHolder.begin_epoch`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.store import step_of
from onecurve.checkpoint.stored_rows import StoredRows, read_rows
from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.device.local_tensor import LocalTensor
from onecurve.job.row_point import RowPoint
from onecurve.params.rows_ahead import table_of
from onecurve.params.saved_rows import saved_rows
from onecurve.params.served_tables import ServedTables
from onecurve.params.table_holder import ReadRows, TableHolder
from onecurve.params.tables import Tables

Epochs = Sequence[int]
"""One for each holder of tables."""


@dataclass(frozen=True)
class RowsToSave:
    """What a rank saves of its tables."""

    tensors: Sequence[LocalTensor] = ()
    base: str = ""
    """Name of the checkpoint that has the other rows; empty if these are all."""
    needed: str = ""
    """Name of a checkpoint that snapshots in memory are based on until the next checkpoint."""


class SavedRows:
    """Every rank has one. `tables`: None if the model has none."""

    def __init__(self, tables: Tables | None, rank: int) -> None:
        self._rank, self._tables = rank, tables
        self._holders = tables.holders if tables is not None else ()
        self._base = ""
        """Name of the newest checkpoint that is known to exist and has all rows."""
        self._since = self._everything
        """For each holder: rows that have changed in this epoch or later are not in the base."""
        self._full_save: tuple[int, Epochs] | None = None
        """Step of a save of all rows whose end is not known yet, and the first epochs after it."""

    @property
    def _everything(self) -> Epochs:
        return (0,) * len(self._holders)

    @property
    def point(self) -> RowPoint | None:
        """Where the rows on servers stand; None if there are none."""
        for holder, since in zip(self._holders, self._since, strict=True):
            if isinstance(holder, ServedTables) and holder.point is not None:
                return replace(holder.point, since=since)
        return None

    def begin(self) -> None:
        """The training begins."""
        for holder in self._served:
            holder.begin()

    @property
    def _served(self) -> list[ServedTables]:
        return [holder for holder in self._holders if isinstance(holder, ServedTables)]

    def load(
        self, checkpoint: Checkpoint, can_be_base: bool, step: int, updates: int, point: RowPoint | None = None
    ) -> None:
        """Replace all rows by those of a checkpoint, whatever plan has saved it. All ranks call it together.

        `can_be_base`: it is in the store to which the run saves. `step`: the one after which it was saved. `updates`:
        those that the rows have had. `point`: what the rows on servers must go back to, because a snapshot in memory
        does not have them.
        """
        if self._tables is None:
            return
        if point is not None and not any(holder.can_go_back(point) for holder in self._served):
            raise CorruptedError(f"{checkpoint.where}: the rows on servers are not those of this snapshot")
        base = checkpoint.rows_base()
        since, errors = [], list[Exception]()
        for holder in self._holders:
            if point is not None and isinstance(holder, ServedTables):
                holder.go_back(point)
                since.append(point.since)
                continue
            read_base = self._reader(base) if base is not None else None
            try:
                since.append(holder.load(read_base, self._reader(checkpoint), updates))
            except (CorruptedError, OSError) as error:  # the other ranks load the other tables together with this one
                errors.append(error)
        if damage := self._tables.ahead.load(step, self._tables.staleness.steps, self._reader(checkpoint)):
            errors.append(damage)
        if errors:
            raise errors[0]
        self._base = base.name if base is not None else checkpoint.name if can_be_base else ""
        self._since, self._full_save = tuple(since), None

    def for_checkpoint(self, step: int, saved: str, group: Group) -> RowsToSave:
        """Return what to save at a step. `saved`: name of the newest checkpoint that this run has saved; no save is
        running. All ranks of the group call it together."""
        if not any(holder.tables for holder in self._holders):
            return RowsToSave()
        if self._full_save is not None and saved and step_of(saved) == self._full_save[0]:
            self._base, self._since = saved, self._full_save[1]
        self._full_save = None
        self._note_snapshot()  # what is saved is a snapshot in memory too
        if self._base and not self._most_have_changed(group):
            return RowsToSave(self._saved(step, self._holders, self._since), self._base, self._base)
        self._full_save = (step, tuple(holder.begin_epoch() for holder in self._holders))
        return RowsToSave(self._saved(step, self._holders, self._everything), needed=self._base)

    def for_snapshot(self, step: int) -> RowsToSave:
        """Return what to copy to memory. Rows on servers stay there: the servers can go back to this point."""
        since = dict(zip(self._holders, self._since if self._base else self._everything, strict=True))
        own = [holder for holder in self._holders if not isinstance(holder, ServedTables)]
        self._note_snapshot()
        return RowsToSave(self._saved(step, own, [since[holder] for holder in own]), self._base, self._base)

    def _note_snapshot(self) -> None:
        for holder in self._served:
            holder.note_snapshot()

    def _saved(self, step: int, holders: Sequence[TableHolder], since: Sequence[int]) -> list[LocalTensor]:
        """What this rank writes: rows that have changed, and those that were fetched for steps after this one."""
        if self._tables is None:
            return []
        parts = [part for holder, epoch in zip(holders, since, strict=True) for part in holder.parts_to_save(epoch)]
        return saved_rows([*parts, *self._tables.ahead.parts_to_save(step)], self._rank)

    def _most_have_changed(self, group: Group) -> bool:
        counts = [
            holder.count(table, since)
            for holder, since in zip(self._holders, self._since, strict=True)
            for table in holder.tables
        ]
        changed, total = (sum(getattr(count, name) for count in counts) for name in ("changed", "total"))
        of_all = all_reduce_sum(group, torch.tensor([changed, total]))
        return bool(2 * of_all[0] > of_all[1])

    def _reader(self, checkpoint: Checkpoint) -> ReadRows:
        def read(tables: Sequence[str], slots: range) -> Iterator[StoredRows]:
            assert self._tables is not None
            for name, ids, rows, states in read_rows(checkpoint, tables, slots):
                width, of_states = self._tables.widths(table_of(name))
                if (rows.shape[1], states.shape[1]) != (width, of_states if name == table_of(name) else 0):
                    raise CorruptedError(f"{checkpoint.where}: table {name!r} has rows of another width")
                yield name, ids, rows, states

        return read
