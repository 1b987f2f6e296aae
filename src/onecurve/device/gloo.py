"""When gloo, the backend for tensors on CPU, connects the ranks of a process group."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

_LAZY_INIT = "TORCH_GLOO_LAZY_INIT"


@contextmanager
def gloo_lazy_init(lazy: bool) -> Iterator[None]:
    """Choose when the gloo groups that are created inside connect their ranks.

    Eagerly, each rank reads the address of every other member from the store and connects to it. Lazily, two ranks
    connect when they first exchange data. But the first `isend` or `irecv` between two ranks may then wait until the
    other rank's matching call, and a schedule that sends and receives in different orders on different ranks can
    deadlock: use a lazy group for collectives only.
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


def connect_neighbours(group: dist.ProcessGroup | None = None) -> None:
    """Connect each rank of a lazy group (None: the world) to its two neighbours in the ring, by an all-reduce.

    All-reduce, all-gather and reduce-scatter use these connections only. A rank that dies closes them, so the others
    notice; a rank that waits for the first connection to a dead one would not.
    """
    dist.all_reduce(torch.zeros(1), group=group)
