"""Creation of process groups by their members only, so that its work on a rank does not grow with the world."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from onecurve.describe.errors import OnecurveError
from onecurve.device.gloo import connect_neighbours, gloo_lazy_init

SENDING = "_sends"
"""Ends the description of a group whose ranks also send and receive outside of collectives."""
BACKGROUND = "background"
"""Description of a group that a thread uses besides the one that trains."""


def align_group_names() -> None:
    """Make the following `new_member_group` calls choose the same name on all members. Every rank must call it.

    torch names a group that only its members create by its ranks and by the number of groups that the calling rank
    belongs to. Members with different numbers would wait for each other forever. A rank that belongs to fewer groups
    than another one, for example because it is outside a smaller mesh, first creates groups of itself alone.
    """
    own_count = len(distributed_c10d._world.pg_names)
    largest_count = torch.tensor([own_count])
    dist.all_reduce(largest_count, dist.ReduceOp.MAX)
    for _ in range(int(largest_count) - own_count):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)


def new_member_group(ranks: Sequence[int], description: str, *, sends: bool = False) -> dist.ProcessGroup:
    """Create a group. Exactly its members call this, after `align_group_names`, and in the same order for all groups.

    Args:
        ranks: the members, in ascending order.
        description: shown in torch's logs.
        sends: True if ranks also send and receive outside of collectives.
    """
    if device := dist.group.WORLD.bound_device_id:  # type: ignore[union-attr]
        raise OnecurveError(
            f"process group: it was initialized with device_id={device}. torch then splits its communicator, which "
            "needs every rank of the world for every group. Call init_process_group without device_id, or let onecurve "
            "call it"
        )
    with gloo_lazy_init(not sends):
        description += SENDING * sends
        group = dist.new_group(list(ranks), use_local_synchronization=True, group_desc=description)
    assert isinstance(group, dist.ProcessGroup)
    if not sends:
        connect_neighbours(group)
    return group
