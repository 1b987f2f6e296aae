"""The rows of the embedding tables as a checkpoint has them: ordered by slot, each slot written by one rank."""

from collections.abc import Sequence

from onecurve.device.local_tensor import LocalTensor, local_tensor_of
from onecurve.params.table_holder import TableHolder


def saved_rows(holders: Sequence[tuple[TableHolder, int]], rank: int) -> list[LocalTensor]:
    """Return what this rank writes of some tables, as tensors `TABLE@RANK/PART`: of each holder, the rows that have
    changed since an epoch."""
    return [
        local_tensor_of(f"{name}@{rank}/{part}", getattr(parts, part), True, of_table=True)
        for holder, since in holders
        for name, parts in holder.parts_to_save(since)
        for part in ("ends", "ids", "rows", "states")
    ]
