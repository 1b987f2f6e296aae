"""Finds out how a job uses its embedding tables: runs the model on some of its samples, and counts the distinct ids."""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from onecurve.data.training_data import TrainingData
from onecurve.describe.table_use import RowCosts, TableUse
from onecurve.device.rng import preserve_rng_state
from onecurve.job.embedding import EmbeddingTable, connect, tables_of
from onecurve.job.job import Job
from onecurve.model.deferred import defer_init
from onecurve.model.materialize import Materializer

_MAX_SAMPLES = 1 << 14
_HOST = torch.device("cpu")
_MAX_SECONDS = 10.0
"""No further samples are read after this time."""

TimeRows = Callable[[EmbeddingTable], RowCosts]
"""Measures what this host needs to work on the rows of a table."""


class NoRows:
    """A source of rows that takes no time: all of them are zero."""

    def rows(self, table: EmbeddingTable, ids: Tensor, device: torch.device) -> Tensor:
        return torch.zeros(ids.numel(), table.width, device=device).requires_grad_(torch.is_grad_enabled())


class _IdCounter(NoRows):
    """Counts the distinct ids of each table."""

    def __init__(self) -> None:
        self._ids: dict[str, Tensor] = {}

    def rows(self, table: EmbeddingTable, ids: Tensor, device: torch.device) -> Tensor:
        known = self._ids.get(table.table)
        self._ids[table.table] = ids if known is None else torch.unique(torch.cat([known, ids]))
        return super().rows(table, ids, device)

    def count(self, table: str) -> int:
        return self._ids[table].numel() if table in self._ids else 0


def sample_tables(job: Job, data: TrainingData, time_rows: TimeRows, chunk: int) -> tuple[TableUse, ...]:
    """Return how the model's tables are used. `chunk`: samples of one forward."""
    with preserve_rng_state():
        deferred = defer_init(job.model, job.seed)
        model = deferred.module.eval()
        Materializer(deferred.recorder, _HOST, torch.float32).materialize(model)
        seen = _count(model, data, chunk, job.warmup_samples)
    samples = min(data.steps * job.global_batch, data.order.size)
    return tuple(
        TableUse(
            name=name,
            width=table.width,
            state_width=table.optimizer.state_width(table.width) + table.limits.columns,
            seen=tuple((number, counts[name]) for number, counts in seen.items() if counts[name]),
            samples=samples,
            costs=time_rows(table),
        )
        for name, table in tables_of(model).items()
        if any(counts[name] for counts in seen.values())
    )


def _count(model: nn.Module, data: TrainingData, chunk: int, start: int) -> dict[int, dict[str, int]]:
    """The number of distinct ids of each table after 1, 2, 4, ... samples, and after all that were read. `start`: the
    position of the first of them."""
    names, counter = list(tables_of(model)), _IdCounter()
    connect(model, counter)
    found: dict[int, dict[str, int]] = {}
    limit = min(data.order.size, _MAX_SAMPLES)
    end, begun = 0, time.monotonic()
    while end < limit and time.monotonic() - begun < _MAX_SECONDS:
        begin, end = end, min(limit, max(1, min(2 * end, end + chunk)))
        with torch.no_grad():
            data.trial_micro(start + begin, start + end).to(_HOST, torch.float32).forward(model)
        if end & (end - 1) == 0:
            found[end] = {name: counter.count(name) for name in names}
    found[end] = {name: counter.count(name) for name in names}
    return found
