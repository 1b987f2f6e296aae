"""When gloo, the backend for tensors on CPU, connects the ranks of a process group."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_LAZY_INIT = "TORCH_GLOO_LAZY_INIT"


@contextmanager
def gloo_lazy_init(lazy: bool) -> Iterator[None]:
    """Choose when the gloo groups that are created inside connect their ranks.

    Eagerly, each rank reads the address of every other member from the store and connects to it. Lazily, two ranks
    connect when they first exchange data, so a collective connects a rank to two neighbours or to a logarithm of the
    ranks. But the first `isend` or `irecv` between two ranks may then wait until the other rank's matching call, and a
    schedule that sends and receives in different orders on different ranks can deadlock.
    """
    before = os.environ.get(_LAZY_INIT)
    os.environ[_LAZY_INIT] = "1" if lazy else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LAZY_INIT]
        else:
            os.environ[_LAZY_INIT] = before
