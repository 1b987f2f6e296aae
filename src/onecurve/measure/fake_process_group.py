"""A process group of any size in one process: collectives are recorded by tracers and never performed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def fake_process_group(size: int) -> Iterator[DeviceMesh]:
    """This process as the first tensor rank of `size`: collectives are seen, not performed."""
    if dist.is_initialized():
        raise AssertionError("layouts are derived before a rank joins its world")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    logger = logging.getLogger("torch.distributed.tensor._collective_utils")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of an exchange that some trial would need
    try:
        # Under a name of its own: DTensor remembers what it finds out about a mesh, and would take the real one for it.
        yield DeviceMesh("cpu", torch.arange(size), mesh_dim_names=("pretended",))
    finally:
        logger.setLevel(level)
        dist.destroy_process_group()
