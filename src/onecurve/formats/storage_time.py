"""How long this process has waited for storage."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

_waited = [0.0]


@contextmanager
def waiting_for_storage() -> Iterator[None]:
    """A context in which the process waits for storage."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        _waited[0] += time.perf_counter() - begin


def storage_seconds() -> float:
    """The seconds so far. Threads that wait at the same time are counted one by one."""
    return _waited[0]
