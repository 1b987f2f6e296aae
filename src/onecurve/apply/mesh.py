"""The plan's mesh as torch knows it: one device mesh of the axes that are used, and the groups that train together."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from onecurve.describe.mesh import Mesh
from onecurve.device.exchange import Group, subgroup
from onecurve.device.piece import TENSOR


@dataclass(frozen=True)
class LiveMesh:
    """The mesh with its process groups, over the first ranks of the world; `member` says whether this one is in."""

    mesh: Mesh
    rank: int
    group: Group
    """All ranks."""
    data_group: Group
    """Those that hold the same parts of the model and take different samples."""
    shard_mesh: DeviceMesh | None
    """The axes that fully_shard needs: (replicate, shard), or shard alone."""
    tensor_mesh: DeviceMesh | None

    @property
    def member(self) -> bool:
        return self.rank < self.mesh.size

    @property
    def data_rank(self) -> int:
        return self.mesh.data_rank(self.rank)

    def first(self, tensor: Tensor) -> bool:
        """Whether this rank is the first that holds the same of a tensor, along the axes its mesh leaves out."""
        known = tensor.device_mesh.mesh_dim_names or () if isinstance(tensor, DTensor) else ()
        return not any(place for axis, place in self.mesh.coordinates(self.rank).items() if axis not in known)

    @property
    def reports(self) -> bool:
        """Whether this rank speaks for its samples: of those that hold parts of one copy, one does."""
        return self.mesh.coordinates(self.rank)[TENSOR] == 0


def make_mesh(mesh: Mesh, rank: int, device: str) -> LiveMesh:
    """Every rank of the world must call this, members or not: groups are made together."""
    group = subgroup(range(mesh.size))
    if mesh.shard == mesh.tensor == 1:  # DDP needs no mesh
        return LiveMesh(mesh, rank, group, group, None, None)
    # fully_shard looks after replicas of split parameters too, which DDP refuses; it needs its axis then, even of one.
    data = tuple(axis for axis in _DATA if mesh.degrees[axis] > 1 or (axis == "shard" and mesh.replicate > 1))
    axes = (*data, TENSOR) if mesh.tensor > 1 else data  # an axis of one would only add groups
    ranks = torch.arange(mesh.size).view([mesh.degrees[axis] for axis in axes])
    whole = DeviceMesh(device, ranks, mesh_dim_names=axes)
    if mesh.tensor == 1:
        return LiveMesh(mesh, rank, group, group, whole, None)
    if rank >= mesh.size or not data:
        return LiveMesh(mesh, rank, group, None, None, whole if rank < mesh.size else None)
    data_group = (whole[data]._flatten("data") if len(data) > 1 else whole[data[0]]).get_group()
    return LiveMesh(mesh, rank, group, data_group, whole[data], whole[TENSOR])


_DATA = ("replicate", "shard")
