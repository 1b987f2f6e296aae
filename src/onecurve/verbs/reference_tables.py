"""Embedding tables on one device, as a beginner would write them: an ordinary parameter with the ids that are used.

Nothing of params/ is used here, so that a mistake there shows. Rows are updated by torch's own optimizers where it has
them.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.device.local_tensor import LocalTensor, local_tensor_of
from onecurve.job.embedding import EmbeddingTable, InitialRows, connect, tables_of
from onecurve.job.initial_rows import initial_rows
from onecurve.job.row_optimizer import SGD, Adam, RowOptimizer, RowwiseAdagrad
from onecurve.job.staleness import Staleness
from onecurve.params.tables import Tables

TABLES = "embedding_tables"
"""Name of the reference's child that has the tables as its children."""
_FILE = "tables.json"


class ReferenceTable(nn.Module):
    """One table: a row for each id, and the number of rows that have been updated."""

    def __init__(
        self,
        table: EmbeddingTable,
        ids: Tensor,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        staleness: Staleness,
    ) -> None:
        super().__init__()
        self.ids = ids
        self.rows = nn.Parameter(initial_rows(seed, table.table, ids, table.width, dtype).to(device))
        self.count: Tensor
        self.register_buffer("count", torch.zeros(1, dtype=torch.float64, device=device))
        self._limits = table.limits
        self._first = self.rows.detach().clone()
        self._counts = torch.zeros(ids.numel(), dtype=torch.int64)
        """How many updates each id has had since it was new."""
        self._newest = torch.zeros(ids.numel(), dtype=torch.int64)
        """The last of them."""
        self._staleness, self._step = staleness, 1
        self._versions: deque[Tensor] = deque(maxlen=1 + staleness.steps)
        """The rows after the latest updates, newest last."""
        self.used: set[int] = set()
        """Positions of the rows that the current step uses."""

    def take(self, table: EmbeddingTable, ids: Tensor, first: Tensor) -> Tensor:
        """Return rows; an id that the training does not see has its first value."""
        positions = torch.searchsorted(self.ids, ids).clamp(max=self.ids.numel() - 1)
        known = self.ids[positions] == ids
        if torch.is_grad_enabled():
            wanted = known if table.padding_idx is None else known & (ids != table.padding_idx)
            self.used |= set(positions[wanted].tolist())
        if not self._versions:  # only now, because the rows may have been perturbed
            self._versions.append(self.rows.detach().clone())
        positions = positions.to(first.device)
        newest = self.rows[positions]
        # The values of an older version; gradients go to the newest one.
        values = self._versions[-1 - self._staleness.of(self._step)][positions] + (newest - newest.detach())
        return torch.where(known[:, None].to(first.device), values, first)

    @torch.no_grad()
    def _evict(self) -> Tensor:
        """Give rows their first values again that were not updated for long; return their positions."""
        limit = self._limits.evict_after
        age = self._step - self._newest
        old = (self._newest > 0) & (age > limit) if limit is not None else torch.zeros_like(age, dtype=torch.bool)
        self.rows[old] = self._first[old]
        self._counts[old] = self._newest[old] = 0
        return old.nonzero().squeeze(1)

    def end_step(self) -> Tensor:
        """Count the rows of the step, before its update; return the positions of those that are updated."""
        positions = torch.tensor(sorted(self.used), dtype=torch.int64)
        self._counts[positions] += 1
        self._newest[positions] = self._step
        if self._limits.evict_after is None:  # otherwise it is left open when the memory of rows is freed
            self.count.fill_(float((self._counts > 0).sum()))
        self.used = set()
        return positions[self._counts[positions] >= self._limits.admit_after].to(self.rows.device)

    def note_update(self) -> Tensor:
        """The step has updated the rows; return the positions of those that are forgotten now."""
        self._step += 1
        forgotten = self._evict()
        self._versions.append(self.rows.detach().clone())
        return forgotten.to(self.rows.device)


class ReferenceRows:
    """The source of a reference's rows."""

    def __init__(self, tables: Mapping[str, ReferenceTable], initial: InitialRows) -> None:
        self._tables, self._initial = tables, initial

    def rows(self, table: EmbeddingTable, ids: Tensor, device: torch.device) -> Tensor:
        first = self._initial.rows(table, ids, device).detach()
        return self._tables[table.table].take(table, ids, first)


class _SeenIds(InitialRows):
    """Notes the ids that a model asks for."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        super().__init__(seed, dtype)
        self.seen: dict[str, list[Tensor]] = {}

    def rows(self, table: EmbeddingTable, ids: Tensor, device: torch.device) -> Tensor:
        self.seen.setdefault(table.table, []).append(ids)
        return super().rows(table, ids, device)


def add_tables(
    module: nn.Module,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    staleness: Staleness,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], None],
) -> dict[str, ReferenceTable]:
    """Give the model its tables as parameters with the ids that `forward(module, batch)` asks for."""
    found = tables_of(module)
    if not found:
        return {}
    seen = _SeenIds(seed, dtype)
    connect(module, seen)
    for batch in batches:
        forward(module, batch)
    tables = {
        name: ReferenceTable(table, torch.unique(torch.cat(seen.seen[name])), seed, dtype, device, staleness)
        for name, table in found.items()
        if name in seen.seen
    }
    module.add_module(TABLES, nn.ModuleDict(tables))
    connect(module, ReferenceRows(tables, InitialRows(seed, dtype)))
    return tables


def store_ids(tables: Mapping[str, ReferenceTable], folder: Path) -> None:
    """Store which row belongs to which id."""
    (folder / _FILE).write_text(json.dumps({name: table.ids.tolist() for name, table in tables.items()}))


def table_state(tables: Tables | None, group: Group, folder: Path) -> list[LocalTensor]:
    """Return the rows and their number under a plan, by the names that they have in the reference."""
    if tables is None:
        return []
    state = []
    for name, numbers in json.loads((folder / _FILE).read_text()).items():
        counted = tables.count(name) if tables.limits(name).evict_after is None else 0
        count = all_reduce_sum(group, torch.tensor([float(counted)], dtype=torch.float64))
        for key, value in (("rows", tables.fetch(name, torch.tensor(numbers))), ("count", count)):
            state.append(local_tensor_of(f"{TABLES}.{name}.{key}", value, True))
    return state


class ReferenceOptimizer(torch.optim.Optimizer):
    """The optimizer of the parameters, and those of the tables."""

    def __init__(
        self,
        dense: torch.optim.Optimizer,
        tables: Mapping[str, ReferenceTable],
        optimizers: Mapping[str, RowOptimizer],
    ) -> None:
        self._dense = dense
        self._tables = {name: (table, _optimizer(table.rows, optimizers[name])) for name, table in tables.items()}
        of_tables = [group for _, optimizer in self._tables.values() for group in optimizer.param_groups]
        self.param_groups = [*dense.param_groups, *of_tables]

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._dense.zero_grad(set_to_none)
        for _, optimizer in self._tables.values():
            optimizer.zero_grad(set_to_none)

    def step(self, _: Any = None) -> None:  # type: ignore[override]
        self._dense.step()
        for table, optimizer in self._tables.values():
            used = table.end_step()
            gradient = table.rows.grad if table.rows.grad is not None else torch.zeros_like(table.rows)
            # Also in a step that uses no row of the table: the optimizer counts steps.
            table.rows.grad = torch.sparse_coo_tensor(
                used[None], gradient[used], gradient.shape, check_invariants=True, is_coalesced=True
            )
            optimizer.step()
            table.rows.grad = gradient
            forgotten = table.note_update()
            for state in (state for of_rows in optimizer.state.values() for state in of_rows.values()):
                if isinstance(state, Tensor) and state.dim():
                    state[forgotten] = 0


class _RowwiseAdagrad(torch.optim.Optimizer):
    """Adagrad with one accumulator per row, for one parameter with a sparse gradient."""

    def __init__(self, rows: nn.Parameter, lr: float, eps: float) -> None:
        super().__init__([rows], {"lr": lr, "eps": eps})
        self._sums = self.state[rows]["sum"] = torch.zeros(rows.shape[0], 1, dtype=rows.dtype, device=rows.device)

    @torch.no_grad()
    def step(self, _: Any = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        (rows,) = group["params"]
        for row, gradient in zip(rows.grad.indices()[0].tolist(), rows.grad.values(), strict=True):
            self._sums[row] += (gradient * gradient).sum() / gradient.numel()
            rows[row] -= group["lr"] * gradient / (self._sums[row] ** 0.5 + group["eps"])


def _optimizer(rows: nn.Parameter, spec: RowOptimizer) -> torch.optim.Optimizer:
    if isinstance(spec, SGD):
        return torch.optim.SGD([rows], lr=spec.lr)
    if isinstance(spec, Adam):
        return torch.optim.SparseAdam([rows], lr=spec.lr, betas=spec.betas, eps=spec.eps)
    assert isinstance(spec, RowwiseAdagrad)
    return _RowwiseAdagrad(rows, spec.lr, spec.eps)
