"""Makes the store of a table."""

import torch

from onecurve.params.limited_store import LimitedStore
from onecurve.params.row_store import RowStore, Spill, StoredTable


def new_store(
    table: StoredTable, seed: int, dtype: torch.dtype, share: float = 1.0, spill: Spill | None = None
) -> RowStore:
    """Return an empty store; see `RowStore` for the arguments."""
    kind = LimitedStore if table.limits.columns else RowStore
    return kind(table, seed, dtype, share, spill)
