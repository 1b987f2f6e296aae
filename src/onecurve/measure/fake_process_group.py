"""A fake process group of any size in one process: collectives can be traced but are never performed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore

_names: set[str] = set()
"""Names of the groups that decisions in DTensor's cache refer to."""


@contextmanager
def fake_process_group(size: int) -> Iterator[DeviceMesh]:
    """Make this process rank 0 of a fake group of `size` ranks; yield a one-dimensional mesh over it.

    The process must not be part of a process group already.
    """
    if dist.is_initialized():
        raise AssertionError("a process group exists already; use fake_process_group before joining one")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    _forget_other_groups()
    logger = logging.getLogger("torch.distributed.tensor._collective_utils")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns about redistributions of layouts that are only being tried
    try:
        # The dimension has a name of its own, because DTensor caches sharding decisions by mesh: they must not be
        # reused for a real mesh that looks the same.
        yield DeviceMesh("cpu", torch.arange(size), mesh_dim_names=("pretended",))
    finally:
        logger.setLevel(level)
        dist.destroy_process_group()


def _forget_other_groups() -> None:
    """Empty DTensor's cache if this group has another name than those before, as after a call of init_process_group
    that has failed. To DTensor, both meshes look the same."""
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]
    if _names - {name}:
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache  # imports torch._dynamo: two seconds

        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
        _names.clear()
    _names.add(name)
