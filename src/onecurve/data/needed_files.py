"""Which remote files a job needs, and when: its order of samples says so."""

from collections.abc import Sequence

import numpy as np

from onecurve.cache.remote_file import RemoteFile
from onecurve.data.file_table import FileTable
from onecurve.data.order import Integers, Order


class NeededFiles:
    """The files of the training data, then those of the evaluations."""

    def __init__(
        self, order: Order, training: Sequence[FileTable], evaluation: Sequence[FileTable], every: int
    ) -> None:
        """`every`: samples between two evaluations."""
        self._order, self._training, self._every = order, training, every
        self._tables = [*training, *evaluation]
        self._ends = np.cumsum([len(table) for table in self._tables], dtype=np.int64)

    @property
    def count(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def ordered(self) -> int:
        return sum(map(len, self._training))

    @property
    def window_bytes(self) -> int:
        """The most bytes that are needed at the same time."""
        return sum(table.window_bytes for table in self._tables)

    def file(self, number: int) -> RemoteFile:
        table = int(np.searchsorted(self._ends, number, side="right"))
        return self._tables[table].file(number - (int(self._ends[table - 1]) if table else 0))

    def next_uses(self, position: int) -> Integers:
        of_pieces = self._order.next_uses(position)
        uses = []
        for table in self._tables[: len(self._training)]:
            begin = table.first_piece
            uses.append(np.minimum.reduceat(of_pieces[begin : begin + len(table.index)], table.first_pieces))
        for table in self._tables[len(self._training) :]:
            uses.append(np.full(len(table), position + self._every))
        return np.concatenate(uses) if uses else np.zeros(0, np.int64)
