"""The rows of the embedding tables as a checkpoint has them: ordered by slot, each slot written by one rank."""

from collections.abc import Iterable

from onecurve.device.local_tensor import LocalTensor, local_tensor_of
from onecurve.params.table_holder import TableParts


def saved_rows(tables: Iterable[tuple[str, TableParts]], rank: int) -> list[LocalTensor]:
    """Return what this rank writes of some tables, as tensors `TABLE@RANK/PART`."""
    return [
        local_tensor_of(f"{name}@{rank}/{part}", getattr(parts, part), True, of_table=True)
        for name, parts in tables
        for part in ("ends", "ids", "rows", "states")
    ]
