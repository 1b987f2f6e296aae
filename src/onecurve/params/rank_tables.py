"""Tables whose rows are in the ranks: each in a store, and shared by an exchange."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from onecurve.describe.slots import SLOTS
from onecurve.job.embedding import EmbeddingTable
from onecurve.params.exchange import Exchange
from onecurve.params.slots import slots_of
from onecurve.params.stores import new_store
from onecurve.params.table_holder import Gradients, ReadRows, RowCount, TableParts, slot_order


class RankTables:
    """The rows that this rank holds of some tables."""

    def __init__(
        self,
        tables: Mapping[str, EmbeddingTable],
        exchanges: Mapping[str, Exchange],
        seed: int,
        dtype: torch.dtype,
        share: float,
    ) -> None:
        """`share`: of the address space that tables may have, for each of them."""
        self.stores = {name: new_store(table, seed, dtype, share) for name, table in tables.items()}
        self.exchanges, self._dtype = exchanges, dtype
        self._updates = 0
        self._sums: Gradients = {}

    @property
    def tables(self) -> Sequence[str]:
        return list(self.stores)

    def fetch(self, table: str, ids: Tensor) -> Tensor:
        return self.exchanges[table].fetch(self.stores[table], ids)

    def fetch_later(self, ids: Mapping[str, Tensor]) -> Callable[[], Mapping[str, Tensor]]:
        rows = {name: self.fetch(name, wanted) for name, wanted in ids.items()}
        return lambda: rows

    def close(self) -> None:
        """Nothing is open."""

    def begin_step(self) -> None:
        self._sums = {}

    def reduce(self, gradients: Gradients) -> Tensor:
        squares = torch.zeros((), dtype=torch.float64)
        sums = {}
        for name, exchange in self.exchanges.items():
            sums[name] = exchange.reduce(*gradients[name])
            if exchange.counts:
                squares += sums[name][1].double().square().sum()
        self._sums = sums
        return squares

    def send(self, gradients: Gradients) -> None:
        self.reduce(gradients)

    def update(self, factor: float, lr_factor: float) -> None:
        self._updates += 1
        for name, (ids, gradients) in self._sums.items():
            store = self.stores[name]
            if ids.numel():
                store.update(ids, gradients * factor, store.table.optimizer.lr * lr_factor, self._updates)
            store.updates = self._updates
            store.free(self._updates % SLOTS, self._updates)

    def skip(self) -> None:
        """The gradients are dropped when the next step begins."""

    def count(self, table: str, since: int) -> RowCount:
        store = self.stores[table]
        if not self.exchanges[table].counts:
            return RowCount(0, 0)
        return RowCount(store.changed_since(since).numel(), len(store))

    def begin_epoch(self) -> int:
        epoch = 1 + max(store.epoch for store in self.stores.values())
        for store in self.stores.values():
            store.epoch = epoch
        return epoch

    def parts_to_save(self, since: int) -> Iterator[tuple[str, TableParts]]:
        for name, store in self.stores.items():
            changed = store.changed_since(since)
            own = changed[self.exchanges[name].saves(slots_of(store.ids_at(changed)))]
            order, ends = slot_order(store.ids_at(own))
            yield (
                name,
                TableParts(ends, *store.contents(own[order])),
            )  # rows are copied once: they may be most of memory

    def load(self, base: ReadRows | None, newest: ReadRows, updates: int) -> int:
        for store in self.stores.values():
            store.clear()
            store.updates = updates
        self._updates = updates
        epoch = 1  # of a store without rows
        if base is not None:
            self._put(base, 0)
        self._put(newest, 0 if base is None else epoch)
        return epoch

    def _put(self, read: ReadRows, epoch: int) -> None:
        """Set saved rows, as changed in an epoch."""
        for slots in {exchange.slots for exchange in self.exchanges.values()}:
            held = [name for name, exchange in self.exchanges.items() if exchange.slots == slots]
            for name, ids, rows, states in read(held, slots):
                self.stores[name].put(ids, rows, states, epoch)
