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
    ranks = torch.arange(mesh.size).view(mesh.replicate, mesh.shard, mesh.tensor)
    if mesh.tensor == 1:
        if mesh.shard == 1:  # DDP needs no mesh
            return LiveMesh(mesh, rank, group, group, None, None)
        data = DeviceMesh(device, ranks[:, :, 0], mesh_dim_names=_DATA)
        return LiveMesh(mesh, rank, group, group, _shard_mesh(data, mesh), None)
    whole = DeviceMesh(device, ranks, mesh_dim_names=(*_DATA, TENSOR))
    if rank >= mesh.size:
        return LiveMesh(mesh, rank, group, None, None, None)
    data_group = whole[_DATA]._flatten("data").get_group() if mesh.data > 1 else None
    # fully_shard looks after replicas of split parameters too, which DDP refuses.
    return LiveMesh(mesh, rank, group, data_group, _shard_mesh(whole, mesh), whole[TENSOR])


_DATA = ("replicate", "shard")


def _shard_mesh(whole: DeviceMesh, mesh: Mesh) -> DeviceMesh | None:
    if mesh.data == 1:
        return None
    return whole[_DATA] if mesh.replicate > 1 else whole["shard"]
