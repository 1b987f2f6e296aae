"""Some rows of a table, found by their ids."""

from dataclasses import dataclass

import torch
from torch import Tensor


class UnknownIdsError(LookupError):
    """Some ids are not among those whose rows are there."""


@dataclass(frozen=True)
class RowsById:
    """Rows that do not change. `ids`: distinct, in ascending order."""

    ids: Tensor
    rows: Tensor

    def get(self, ids: Tensor) -> Tensor:
        """Return the rows of these ids. Raises UnknownIdsError if one is not there."""
        places = torch.searchsorted(self.ids, ids)
        if not torch.equal(self.ids[places.clamp(max=self.ids.numel() - 1)] if self.ids.numel() else self.ids, ids):
            raise UnknownIdsError
        return self.rows[places]

    @staticmethod
    def of(ids: Tensor, rows: Tensor) -> "RowsById":
        """Rows whose ids may occur several times, with the same values."""
        distinct, index = torch.unique(ids, return_inverse=True)
        values = rows.new_empty(distinct.numel(), rows.shape[1])
        values[index] = rows
        return RowsById(distinct, values)
