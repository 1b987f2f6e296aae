"""What a fetcher must know about the files of a job."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onecurve.cache.remote_file import RemoteFile

Integers = NDArray[np.int64]


class Needs(Protocol):
    """The remote files of a job, which are numbered, and when they are needed."""

    @property
    def count(self) -> int:
        """Number of files."""

    @property
    def ordered(self) -> int:
        """Number of files, counted from the first, that are read in the order of samples."""

    def file(self, number: int) -> RemoteFile:
        """Return a file."""

    def next_uses(self, position: int) -> Integers:
        """For each file, the first position of the sample order, from this one on, at which it is read."""
