"""Counts what a cache does, over all processes of a host."""

import multiprocessing
from dataclasses import dataclass

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
    """Numbers in memory that forked processes share."""

    def __init__(self) -> None:
        self._numbers = multiprocessing.get_context("fork").Array("q", len(_FIELDS))

    def add(self, **numbers: int) -> None:
        with self._numbers.get_lock():
            for name, number in numbers.items():
                self._numbers[_FIELDS.index(name)] += number

    def use(self) -> CacheUse:
        with self._numbers.get_lock():
            return CacheUse(*self._numbers[:])
