"""Creates many meshes in one world of 4 ranks, which reach each of them at different times. Run it with torchrun."""

import itertools
import random
import time

import torch
import torch.distributed as dist

from onecurve.apply.process_mesh import ProcessMesh, make_mesh
from onecurve.describe.mesh import Mesh
from onecurve.device.collectives import Group
from onecurve.device.device import local_cpu
from onecurve.device.world import World

MESHES = [
    Mesh(pipeline=2, tensor=2),
    Mesh(shard=2),
    Mesh(replicate=2, shard=2),
    Mesh(pipeline=3),
    Mesh(),
    Mesh(replicate=2, tensor=2),
    Mesh(pipeline=2, replicate=2),
    Mesh(replicate=3),
    Mesh(pipeline=4),
    Mesh(shard=2, tensor=2),
]


def total(group: Group, value: int) -> int:
    """Sum a number over the group."""
    if group is None:
        return value
    values = torch.tensor([value])
    dist.all_reduce(values, group=group)
    return int(values)


def expect_sums(made: ProcessMesh) -> None:
    """The sum of ranks over each group must be that of the ranks along its axes."""
    groups = {
        ("pipeline", "replicate", "shard", "tensor"): made.group,
        ("pipeline",): made.pipeline_group,
        ("replicate", "shard"): made.data_group,
        ("replicate", "shard", "tensor"): made.peers,
    }
    for device_mesh in (made.shard_mesh, made.tensor_mesh):
        if device_mesh is not None:
            names = device_mesh.mesh_dim_names or ()
            groups |= {(axis,): device_mesh.get_group(axis) for axis in names}
    for axes, group in groups.items():
        assert total(group, made.rank) == sum(made.mesh.ranks_along(made.rank, *axes)), (made.mesh, axes)


def expect_sends(group: dist.ProcessGroup, first: int, second: int, third: int) -> None:
    """Three stages send so that, if a first `isend` waited for its receiver, all three would wait in a circle."""
    buffer = torch.zeros(1)
    if group.rank() == first:
        sends = [dist.isend(buffer, group=group, group_dst=stage) for stage in (second, third)]
        for send in sends:
            assert send is not None
            send.wait()
    elif group.rank() == second:
        for stage in (third, first):
            dist.recv(buffer, group=group, group_src=stage)
    else:
        dist.recv(buffer, group=group, group_src=first)
        dist.send(buffer, group=group, group_dst=second)


def main() -> None:
    world = World.from_environment()
    assert world is not None
    pauses = random.Random(world.rank)
    world.join(local_cpu())
    for mesh in MESHES:
        time.sleep(pauses.uniform(0, 0.2))
        if world.rank == 1:
            dist.new_group([1], use_local_synchronization=True)  # the user's own, on one rank only
        made = make_mesh(mesh, world.rank, "cpu")
        if made.member:
            expect_sums(made)
    for stages in itertools.permutations(range(3)):
        group = make_mesh(Mesh(pipeline=3), world.rank, "cpu").pipeline_group
        if group is not None:
            expect_sends(group, *stages)
    world.leave()


if __name__ == "__main__":
    main()
