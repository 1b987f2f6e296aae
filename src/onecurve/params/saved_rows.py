"""The rows of the embedding tables as a checkpoint has them: ordered by slot, each slot written by one rank."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from onecurve.describe.slots import SLOTS
from onecurve.device.local_tensor import LocalTensor, local_tensor_of
from onecurve.params.slots import slots_of
from onecurve.params.tables import Tables


@dataclass(frozen=True)
class TableParts:
    """What one rank writes of one table."""

    ends: Tensor
    """For each slot, the number of rows in it and in all slots before."""
    ids: Tensor
    rows: Tensor
    states: Tensor


def parts_to_save(tables: Tables, since: int) -> Iterator[tuple[str, TableParts]]:
    """Yield the name of each table, and what this rank writes of its rows that have changed since an epoch."""
    for name, store in tables.stores.items():
        changed = store.changed_since(since)
        slots = slots_of(store.ids[changed])
        own = tables.exchanges[name].saves(slots).nonzero().squeeze(1)
        order = own[slots[own].argsort(stable=True)]
        ends = slots[order].bincount(minlength=SLOTS).cumsum(0)
        yield name, TableParts(ends, *store.contents(changed[order]))


def saved_rows(tables: Tables, rank: int, since: int = 0) -> list[LocalTensor]:
    """Return what this rank writes of all tables, as tensors `TABLE@RANK/PART`. `since`: only the rows that have
    changed in this epoch or later."""
    return [
        local_tensor_of(f"{name}@{rank}/{part}", getattr(parts, part), True, of_table=True)
        for name, parts in parts_to_save(tables, since)
        for part in ("ends", "ids", "rows", "states")
    ]
