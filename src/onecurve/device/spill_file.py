"""An array whose first part is in memory and the rest in a file, which the operating system reads and writes."""

import ctypes
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onecurve.describe.errors import OnecurveError
from onecurve.device.reserved_memory import reserve

_MAP_FIXED = 0x10  # of Linux's mmap; Python does not name it
_ALLOCATED_BYTES = 1 << 26
"""Space in the file is allocated in steps of this size."""


class SpillFile:
    """A file without a name: it is gone with the process."""

    def __init__(self, folder: Path, memory: int) -> None:
        """`memory`: bytes of the array that are in memory. Raises OSError if the folder cannot be written."""
        self.memory = -(-memory // mmap.PAGESIZE) * mmap.PAGESIZE
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open as long as the array is used
        self._allocated = 0

    def reserve(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Return an array of zeros. Call `allocate` before something is written into it. One per file."""
        array = reserve(shape, dtype)
        if (in_file := array.nbytes - self.memory) > 0:
            try:
                self._map(array.ctypes.data + self.memory, in_file)
            except OSError as error:
                raise OnecurveError(
                    f"{self._folder}: no file of {in_file:,} bytes can be used there ({error.strerror})"
                ) from None
        return array

    def _map(self, begin: int, nbytes: int) -> None:
        """Have the file at an address, which is reserved."""
        os.ftruncate(self._file.fileno(), nbytes)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        access = mmap.PROT_READ | mmap.PROT_WRITE
        found = libc.mmap(begin, nbytes, access, mmap.MAP_SHARED | _MAP_FIXED, self._file.fileno(), 0)
        if found != begin:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.madvise(begin, nbytes, mmap.MADV_RANDOM)  # a row says nothing about its neighbours

    def allocate(self, nbytes: int) -> None:
        """Have space for so many bytes of the array. Raises OSError if the disk is full: later it would be too late."""
        while self._allocated < nbytes - self.memory:
            os.posix_fallocate(self._file.fileno(), self._allocated, _ALLOCATED_BYTES)
            self._allocated += _ALLOCATED_BYTES

    def read_ahead(self, begins: NDArray[np.int64], nbytes: int) -> None:
        """Have pieces of the array read, all at once: those that are in the file, of a length, at these bytes."""
        offsets = begins - self.memory
        offsets = offsets[offsets + nbytes > 0]
        pages = np.unique(np.concatenate([offsets, offsets + nbytes - 1]) // mmap.PAGESIZE)
        number = self._file.fileno()
        for page in pages[pages >= 0].tolist():
            os.posix_fadvise(number, page * mmap.PAGESIZE, mmap.PAGESIZE, os.POSIX_FADV_WILLNEED)
