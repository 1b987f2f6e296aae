"""The plan's mesh as torch knows it: one device mesh of the axes that are used, and the group of all its ranks."""

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh

from onecurve.describe.mesh import Mesh
from onecurve.device.exchange import Group, subgroup


@dataclass(frozen=True)
class LiveMesh:
    """The mesh with its process groups, over the first ranks of the world; `member` says whether this one is in."""

    mesh: Mesh
    rank: int
    group: Group
    shard_mesh: DeviceMesh | None
    """The axes that fully_shard needs: (replicate, shard), or shard alone."""

    @property
    def member(self) -> bool:
        return self.rank < self.mesh.size

    @property
    def data_rank(self) -> int:
        return self.mesh.data_rank(self.rank)


def make_mesh(mesh: Mesh, rank: int, device: str) -> LiveMesh:
    """Every rank of the world must call this, members or not: groups are made together."""
    group = subgroup(range(mesh.size))
    shard_mesh = None
    if mesh.shard > 1:
        ranks = torch.arange(mesh.size).view(mesh.replicate, mesh.shard)
        if mesh.replicate > 1:
            shard_mesh = DeviceMesh(device, ranks, mesh_dim_names=("replicate", "shard"))
        else:
            shard_mesh = DeviceMesh(device, ranks[0], mesh_dim_names=("shard",))
    return LiveMesh(mesh, rank, group, shard_mesh)
