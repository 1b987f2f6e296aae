"""Counts what a cache does, for a rank and the processes that it has forked."""

import threading
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray

_FIELDS = ("hits", "waits", "store_bytes", "peer_bytes")


@dataclass(frozen=True)
class CacheUse:
    """What a cache has done so far."""

    hits: int
    """Files that were there when they were needed."""
    waits: int
    """Files that a reader had to wait for."""
    store_bytes: int
    """Read from the store."""
    peer_bytes: int
    """Read from other hosts of the job."""


class CacheCounts:
    """Numbers in memory that forked processes share. They have no lock, which a killed process would hold forever: if
    two count at the same moment, one may be lost."""

    def __init__(self) -> None:
        self._numbers = RawArray("q", len(_FIELDS))
        self._mutex = threading.Lock()

    def add(self, **numbers: int) -> None:
        with self._mutex:
            for name, number in numbers.items():
                self._numbers[_FIELDS.index(name)] += number

    def use(self) -> CacheUse:
        return CacheUse(*self._numbers[:])
