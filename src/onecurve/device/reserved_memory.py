"""Memory that is reserved once, and taken from the machine only as it is used: what grows in it never moves."""

import mmap
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAP_NORESERVE = 0x4000  # of Linux's mmap; Python 3.11 does not name it


def reserve(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of zeros whose memory is taken only where something is written.

    Raises OSError if the address space is limited (`ulimit -v`, vm.overcommit_memory=2).
    """
    count = int(np.prod(shape, dtype=np.int64))
    nbytes = max(1, count * np.dtype(dtype).itemsize)
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    return np.frombuffer(memory, dtype, count).reshape(shape)


def free_address_space() -> int:
    """Return the bytes that this process can still reserve where that is limited: by `ulimit -v`, or by the memory of
    the machine."""
    page = os.sysconf("SC_PAGE_SIZE")
    free = page * os.sysconf("SC_AVPHYS_PAGES")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return free
    used = page * int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, min(free, soft - used))
