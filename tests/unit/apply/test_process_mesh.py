"""The process groups of one rank: which ranks they contain, and that creating them does not grow with the world."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from onecurve.apply.process_mesh import ProcessMesh, make_mesh
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.device.collectives import Group

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import start_up


@contextmanager
def fake_world(rank: int, size: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def ranks_of(group: Group) -> list[int]:
    return dist.get_process_group_ranks(group) if group else []


def axis_ranks(made: ProcessMesh) -> dict[str, list[int]]:
    """Axis → the ranks of its group in the device meshes."""
    meshes = [mesh for mesh in (made.shard_mesh, made.tensor_mesh) if mesh is not None]
    return {axis: ranks_of(mesh.get_group(axis)) for mesh in meshes for axis in mesh.mesh_dim_names or ()}


def test_each_group_contains_the_ranks_that_differ_along_its_axes() -> None:
    with fake_world(13, 16):
        made = make_mesh(Mesh(pipeline=2, replicate=2, shard=2, tensor=2), 13, "cpu")
        assert ranks_of(made.group) == list(range(16))
        assert ranks_of(made.pipeline_group) == [5, 13]
        assert ranks_of(made.data_group) == [9, 11, 13, 15]
        assert ranks_of(made.peers) == list(range(8, 16))
        assert axis_ranks(made) == {"replicate": [9, 13], "shard": [13, 15], "tensor": [12, 13]}
        assert made.shard_mesh is not None
        assert made.shard_mesh.mesh.tolist() == [[9, 11], [13, 15]]
        assert made.shard_mesh.get_coordinate() == (1, 0)


def test_fully_shard_gets_a_shard_axis_of_one_rank_beside_replicated_tensor_parallelism() -> None:
    with fake_world(3, 4):
        made = make_mesh(Mesh(replicate=2, tensor=2), 3, "cpu")
        assert axis_ranks(made) == {"replicate": [1, 3], "shard": [3], "tensor": [2, 3]}


def test_only_data_parallel_ranks_need_no_group_but_the_world() -> None:
    with fake_world(3, 4):
        made = make_mesh(Mesh(replicate=4), 3, "cpu")
        assert made.group is made.data_group is made.peers is dist.group.WORLD
        assert made.shard_mesh is made.tensor_mesh is made.pipeline_group is None


def test_pipeline_stages_do_not_use_the_world_group_whose_sends_could_deadlock() -> None:
    with fake_world(1, 2):
        made = make_mesh(Mesh(pipeline=2), 1, "cpu")
        assert ranks_of(made.pipeline_group) == [0, 1]
        assert made.pipeline_group is not dist.group.WORLD
        assert made.data_group is made.peers is None


def test_a_rank_outside_the_mesh_has_no_groups() -> None:
    with fake_world(3, 4):
        made = make_mesh(Mesh(shard=2), 3, "cpu")
        assert not made.member
        assert made.group is made.data_group is made.peers is made.shard_mesh is None


def test_a_process_group_bound_to_a_device_is_refused() -> None:
    with fake_world(0, 4):
        assert dist.group.WORLD is not None
        dist.group.WORLD.bound_device_id = torch.device("cuda:0")
        with pytest.raises(OnecurveError, match="device_id=cuda:0"):
            make_mesh(Mesh(shard=2, tensor=2), 0, "cpu")


def test_start_up_does_not_grow_with_the_world() -> None:
    small, large = (start_up.measure(mesh) for mesh in start_up.MESHES[:2])
    assert (small.ranks, large.ranks) == (1024, 16_384)
    assert small.groups == large.groups == 8
    # Each group publishes one address. The 4 pipeline stages read each other's, the others those of two neighbours.
    reads = 4 + 7 * 2
    assert small.store_operations == large.store_operations == {"set": 8, "wait": reads, "get": reads}
