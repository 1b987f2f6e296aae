"""The rank of this process in a world."""

import pytest
import torch.distributed as dist

from onecurve.device.device import local_cpu
from onecurve.device.world import World, abandon_process_groups
from onecurve.launch.rank_store import RankStore


def test_a_group_that_could_not_be_made_does_not_change_the_name_of_the_next() -> None:
    """The ranks of a group find each other by its name, and those that are new have made none before."""
    nobody = RankStore("127.0.0.1", 1, b"")
    with pytest.raises(dist.DistNetworkError):
        World(rank=0, size=2, store=nobody).join(local_cpu())
    abandon_process_groups()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        assert dist.group.WORLD.group_name == "0"
    finally:
        dist.destroy_process_group()
