"""The embedding tables of a model on one rank: forward takes rows, backward leaves gradients, the step updates rows.

Only `update` changes or creates rows. Trials, timing and evaluation run forward, some of them backward too: what they
leave is dropped when the next step begins.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from onecurve.describe.errors import OnecurveError
from onecurve.device.collectives import Group
from onecurve.job.batch import MicroBatch
from onecurve.job.embedding import EmbeddingTable, connect, tables_of
from onecurve.job.row_limits import RowLimits
from onecurve.job.row_tables import Upcoming
from onecurve.job.staleness import Staleness
from onecurve.params.exchange import sum_by_id
from onecurve.params.row_store import state_width
from onecurve.params.rows_ahead import RowsAhead
from onecurve.params.table_holder import TableHolder

_FRESH = Staleness()


@dataclass
class _Taken:
    """Rows that a forward has taken."""

    module: EmbeddingTable
    ids: Tensor
    rows: Tensor


class Tables:
    """All tables of a model. The ranks call its methods together."""

    def __init__(
        self,
        model: nn.Module,
        holders: Sequence[TableHolder],
        dtype: torch.dtype,
        group: Group = None,
        staleness: Staleness = _FRESH,
    ) -> None:
        """`holders`: who has the rows; each table is in one of them. `dtype`: of rows and optimizer states. `group`:
        the ranks that process different samples."""
        self.holders, self.staleness = holders, staleness
        self._dtype = dtype
        self._modules = tables_of(model)
        self.ahead = RowsAhead(self._modules, self._fetch_later, group, dtype)
        self._step: int | None = None
        """The step that runs; None between steps."""
        self._rounds: Sequence[MicroBatch] = ()
        self._upcoming: Upcoming = {}
        self._holder_of = {name: holder for holder in holders for name in holder.tables}
        self.updates = 0
        """Updates so far; skipped steps do not count."""
        self._taken: list[_Taken] = []
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}
        """By table: ids and the gradients of their rows, summed over the rounds."""
        connect(model, self)

    @property
    def names(self) -> Sequence[str]:
        return list(self._modules)

    def widths(self, table: str) -> tuple[int, int]:
        """Numbers in a row of a table, and in its optimizer state."""
        module = self._modules[table]
        return module.width, state_width(module)

    def limits(self, table: str) -> RowLimits:
        """Which ids of a table have a row."""
        return self._modules[table].limits

    def close(self) -> None:
        """Let go of servers."""
        for holder in self.holders:
            holder.close()

    def fetch(self, table: str, ids: Tensor) -> Tensor:
        """Return the rows of these ids, which are distinct."""
        return self._holder_of[table].fetch(table, ids)

    def count(self, table: str) -> int:
        """The rows of a table that this rank counts."""
        return self._holder_of[table].count(table, 0).total

    # What forward calls

    def rows(self, table: EmbeddingTable, ids: Tensor, device: torch.device) -> Tensor:
        if torch._C._current_graph_task_id() != -1:
            return self._taken_before(table, ids)
        rows = self._rows_now(table, ids).to(device)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            self._taken.append(_Taken(table, ids, rows))
        return rows

    def _rows_now(self, table: EmbeddingTable, ids: Tensor) -> Tensor:
        if self._step is None or not self.staleness.steps:
            return self.fetch(table.table, ids)
        rows = self.ahead.rows(self._step, table.table, ids, table.padding_idx)
        return self.fetch(table.table, ids) if rows is None else rows

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

    def begin_step(self, step: int, rounds: Sequence[MicroBatch], upcoming: Upcoming) -> None:
        """Forget what trials and evaluations have left; fetch rows of later steps."""
        self._taken.clear()
        self._sums.clear()
        for holder in self.holders:
            holder.begin_step()
        self._step, self._rounds, self._upcoming = step, rounds, upcoming
        self._fetch_ahead()

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
        assert self._step is not None
        if self.staleness.steps:
            self.ahead.learn(self._rounds)
            self._fetch_ahead()  # unless it was done when the step began
        squares = torch.zeros((), dtype=torch.float64)
        for holder in self.holders:
            gradients = {name: self._sums.get(name) or self._nothing(name) for name in holder.tables}
            if self.staleness.applies(self._step):
                holder.send(gradients)
                for _, lines in gradients.values():
                    squares += 0 * lines.double().sum()  # which is not finite if a gradient is not
            else:
                squares += holder.reduce(gradients)
        self._sums.clear()
        return squares

    def update(self, factor: float, lr_factor: float) -> None:
        """Update the rows. `factor`: of all gradients, as for the parameters; `lr_factor`: the schedule's."""
        self.updates += 1
        for holder in self.holders:
            holder.update(factor, lr_factor)
        self._end_step()

    def skip(self) -> None:
        """Drop the gradients of the step."""
        for holder in self.holders:
            holder.skip()
        self._end_step()

    def _end_step(self) -> None:
        assert self._step is not None
        self.ahead.end_step(self._step)
        self._step, self._rounds, self._upcoming = None, (), {}

    def _fetch_ahead(self) -> None:
        assert self._step is not None
        if self.staleness.applies(self._step):
            self.ahead.fetch(self._upcoming)

    def _fetch_later(self, ids: Mapping[str, Tensor]) -> Callable[[], Mapping[str, Tensor]]:
        waits = [holder.fetch_later({name: ids[name] for name in holder.tables}) for holder in self.holders]
        return lambda: {name: rows for wait in waits for name, rows in wait().items()}

    def _nothing(self, table: str) -> tuple[Tensor, Tensor]:
        width = self._modules[table].width
        return torch.empty(0, dtype=torch.int64), torch.empty(0, width, dtype=self._dtype)
