"""Measures what this host needs to look up, merge and update rows of a table."""

import time
from collections.abc import Callable

import torch

from onecurve.describe.table_use import RowCosts, RowSeconds
from onecurve.job.embedding import EmbeddingTable
from onecurve.params.exchange import sum_by_id
from onecurve.params.row_store import RowStore

_STORED_ROWS = 1 << 16
_FEW, _MANY = 1 << 7, 1 << 12
_REPETITIONS = 5


def time_rows(table: EmbeddingTable) -> RowCosts:
    """Measure a table of some rows, in float32."""
    generator = torch.Generator().manual_seed(0)
    store = RowStore(table, 0, torch.float32)
    for ids in torch.split(torch.randperm(_STORED_ROWS, generator=generator), _MANY):
        store.put(ids, torch.zeros(ids.numel(), table.width), torch.zeros(ids.numel(), *store.widths[1]), 0)

    def measured(work: Callable[[torch.Tensor, torch.Tensor], object]) -> RowSeconds:
        few, many = (
            _seconds(work, torch.randperm(_STORED_ROWS, generator=generator)[:rows], table.width)
            for rows in (_FEW, _MANY)
        )
        per_row = max(0.0, many - few) / (_MANY - _FEW)
        return RowSeconds(max(0.0, few - _FEW * per_row), per_row)

    return RowCosts(
        lookup=measured(lambda ids, _: store.get(ids)),
        merge=measured(lambda ids, gradients: sum_by_id(_of_two_ranks(ids, gradients))),
        update=measured(lambda ids, gradients: store.update(ids, gradients, 0.0, 1)),
    )


def _of_two_ranks(ids: torch.Tensor, gradients: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    half = ids.numel() // 2
    return [(ids[:half], gradients[:half]), (ids[half:], gradients[half:])]


def _seconds(work: Callable[[torch.Tensor, torch.Tensor], object], ids: torch.Tensor, width: int) -> float:
    """The fastest of some calls: disturbances only ever make one slower."""
    gradients = torch.ones(ids.numel(), width)
    found = []
    for _ in range(_REPETITIONS):
        begin = time.perf_counter()
        work(ids, gradients)
        found.append(time.perf_counter() - begin)
    return min(found)
