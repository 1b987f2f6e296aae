"""The files that a source reads, as a table in the order of its pieces."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from onecurve.cache.remote_file import RemoteFile
from onecurve.formats.index_file import IndexFile


@dataclass(frozen=True)
class FileTable:
    """The remote files of an index."""

    location: str
    index: IndexFile
    window: int
    """Number of pieces that are read together."""
    first_piece: int = 0
    """The number that the first piece of the index has in the source, if that has several."""

    def after(self, pieces: int) -> "FileTable":
        """The same table in a source that has so many pieces before its own."""
        return replace(self, first_piece=self.first_piece + pieces)

    @cached_property
    def first_pieces(self) -> NDArray[np.int64]:
        """The first piece of each file, which may have several."""
        return np.flatnonzero(self.index.parts == 0)

    def __len__(self) -> int:
        return len(self.first_pieces)

    def file(self, number: int) -> RemoteFile:
        """Return a file."""
        return self.of_piece(int(self.first_pieces[number]))

    def of_piece(self, piece: int) -> RemoteFile:
        """Return the file of a piece of the index."""
        found = self.index.piece(piece, with_details=False)
        return RemoteFile(self.location, found.path, found.size, found.stamp, found.hash)

    @property
    def window_bytes(self) -> int:
        """The most bytes that the files of a window can have."""
        sizes = np.sort(self.index.sizes[self.first_pieces])[-self.window :]
        return int(sizes.sum())
