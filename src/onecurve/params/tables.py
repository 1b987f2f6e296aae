"""The embedding tables of a model on one rank: forward takes rows, backward leaves gradients, the step updates rows.

Only `update` changes or creates rows. Trials, timing and evaluation run forward, some of them backward too: what they
leave is dropped when the next step begins.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from onecurve.describe.errors import OnecurveError
from onecurve.job.embedding import EmbeddingTable, connect, tables_of
from onecurve.params.exchange import Exchange, sum_by_id
from onecurve.params.row_store import RowStore

MakeExchange = Callable[[str], Exchange]
"""Table name → how the ranks share it."""


@dataclass
class _Taken:
    """Rows that a forward has taken."""

    module: EmbeddingTable
    ids: Tensor
    rows: Tensor


class Tables:
    """All tables of a model. The ranks call its methods together."""

    def __init__(self, model: nn.Module, make_exchange: MakeExchange, seed: int, dtype: torch.dtype) -> None:
        """`dtype`: of rows and optimizer states."""
        tables = tables_of(model)
        self.stores: Mapping[str, RowStore] = {
            name: RowStore(table, seed, dtype, 1 / len(tables)) for name, table in tables.items()
        }
        self.exchanges: Mapping[str, Exchange] = {name: make_exchange(name) for name in tables}
        self.updates = 0
        """Updates so far; skipped steps do not count."""
        self._taken: list[_Taken] = []
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        """By table: ids and the gradients of their rows, summed over the rounds; then also over the ranks."""
        connect(model, self)

    def clear(self) -> None:
        """Forget all rows."""
        for store in self.stores.values():
            store.clear()

    @property
    def epoch(self) -> int:
        """Number of the current epoch: a time between two saves of all rows."""
        return next(iter(self.stores.values())).epoch

    def begin_epoch(self) -> None:
        """Mark the rows that change from now on with the next number."""
        for store in self.stores.values():
            store.epoch += 1

    # What forward calls

    def rows(self, table: EmbeddingTable, ids: Tensor, device: torch.device) -> Tensor:
        if torch._C._current_graph_task_id() != -1:
            return self._taken_before(table, ids)
        rows = self.exchanges[table.table].fetch(self.stores[table.table], ids).to(device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            self._taken.append(_Taken(table, ids, rows))
        return rows

    def _taken_before(self, table: EmbeddingTable, ids: Tensor) -> Tensor:
        """The rows that the forward took which is being recomputed. The other ranks may not ask at the same time."""
        for taken in self._taken:
            if taken.module is table and torch.equal(taken.ids, ids):
                return taken.rows
        raise OnecurveError(
            f"table {table.table!r}: a recomputed forward asks for other ids than the forward did; use a plan without "
            "recompute"
        )

    # What the step calls

    def begin_step(self) -> None:
        """Forget what trials and evaluations have left."""
        self._taken.clear()
        self._sums.clear()

    def end_round(self, divisor: float) -> None:
        """Add the gradients of a round, divided by a number, to those of the step."""
        found: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for taken in self._taken:
            gradient = taken.rows.grad
            if gradient is None:
                continue
            ids, gradient = taken.ids, gradient.to("cpu", self._dtype) / divisor
            if taken.module.padding_idx is not None:
                kept = ids != taken.module.padding_idx
                ids, gradient = ids[kept], gradient[kept]
            found.setdefault(taken.module.table, []).append((ids, gradient))
        for name, parts in found.items():
            before = [self._sums[name]] if name in self._sums else []
            self._sums[name] = sum_by_id([*before, *parts])
        self._taken.clear()

    def reduce(self) -> Tensor:
        """Sum the gradients over the ranks; return the sum of the squares that this rank counts, in float64."""
        squares = torch.zeros((), dtype=torch.float64)
        for name, store in self.stores.items():
            nothing = torch.empty(0, dtype=torch.int64), torch.empty(0, store.table.width, dtype=self._dtype)
            self._sums[name] = self.exchanges[name].reduce(*self._sums.get(name, nothing))
            if self.exchanges[name].counts:
                squares += self._sums[name][1].double().square().sum()
        return squares

    def update(self, factor: float, lr_factor: float) -> None:
        """Update the rows. `factor`: of all gradients, as for the parameters; `lr_factor`: the schedule's."""
        self.updates += 1
        for name, (ids, gradients) in self._sums.items():
            store = self.stores[name]
            if ids.numel():
                store.update(ids, gradients * factor, store.table.optimizer.lr * lr_factor, self.updates)
        self._sums.clear()

    @property
    def _dtype(self) -> torch.dtype:
        return next(iter(self.stores.values())).dtype
