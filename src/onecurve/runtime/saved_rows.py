"""The rows of embedding tables in a run's checkpoints: one has all of them, those after it the rows that changed since.

A checkpoint has all rows if none before it has, or if more than half of the rows have changed since the last one that
has: so one that has not has at most half of them. An epoch ends with each that has, see `Tables.begin_epoch`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.store import step_of
from onecurve.checkpoint.stored_rows import read_rows
from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.device.local_tensor import LocalTensor
from onecurve.params.saved_rows import saved_rows
from onecurve.params.tables import Tables


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
        self._tables, self._rank = tables, rank
        self._base = ""
        """Name of the newest checkpoint that is known to exist and has all rows."""
        self._since = 0
        """Rows that have changed in this epoch or later are not in the base."""
        self._full_save: tuple[int, int] | None = None
        """Step of a save of all rows whose end is not known yet, and the first epoch after it."""

    def load(self, checkpoint: Checkpoint, can_be_base: bool) -> None:
        """Replace all rows of this rank by those of a checkpoint, whatever plan has saved it.

        `can_be_base`: it is in the store to which the run saves.
        """
        if self._tables is None:
            return
        self._tables.clear()
        base = checkpoint.rows_base()
        if base is not None:
            self._put(base, 0)
        self._put(checkpoint, 0 if base is None else self._tables.epoch)
        self._base = base.name if base is not None else checkpoint.name if can_be_base else ""
        self._since, self._full_save = self._tables.epoch, None

    def for_checkpoint(self, step: int, saved: str, group: Group) -> RowsToSave:
        """Return what to save at a step. `saved`: name of the newest checkpoint that this run has saved; no save is
        running. All ranks of the group call it together."""
        if self._tables is None:
            return RowsToSave()
        if self._full_save is not None and saved and step_of(saved) == self._full_save[0]:
            self._base, self._since = saved, self._full_save[1]
        self._full_save = None
        if self._base and not self._most_have_changed(self._tables, group):
            return self.for_snapshot()
        self._tables.begin_epoch()
        self._full_save = (step, self._tables.epoch)
        return RowsToSave(saved_rows(self._tables, self._rank), needed=self._base)

    def for_snapshot(self) -> RowsToSave:
        """Return what to copy to memory."""
        if self._tables is None:
            return RowsToSave()
        since = self._since if self._base else 0
        return RowsToSave(saved_rows(self._tables, self._rank, since), self._base, self._base)

    def _most_have_changed(self, tables: Tables, group: Group) -> bool:
        stores = tables.stores.values()
        changed = sum(store.changed_since(self._since).numel() for store in stores)
        of_all = all_reduce_sum(group, torch.tensor([changed, sum(map(len, stores))]))
        return bool(2 * of_all[0] > of_all[1])

    def _put(self, checkpoint: Checkpoint, epoch: int) -> None:
        """Set the rows of a checkpoint, as changed in an epoch."""
        assert self._tables is not None
        exchanges = self._tables.exchanges
        for slots in {exchange.slots for exchange in exchanges.values()}:
            held = [name for name, exchange in exchanges.items() if exchange.slots == slots]
            for name, ids, rows, states in read_rows(checkpoint, held, slots):
                store = self._tables.stores[name]
                if (rows.shape[1:], states.shape[1:]) != store.widths:
                    raise CorruptedError(f"{checkpoint.where}: table {name!r} has rows of another width")
                store.put(ids, rows, states, epoch)
