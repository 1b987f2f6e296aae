"""The plan's mesh as torch knows it: one device mesh of the axes that are used, and the groups that train together."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from onecurve.describe.mesh import Mesh
from onecurve.device.collectives import Group, group_containing, subgroup
from onecurve.device.local_tensor import REPLICATE, TENSOR

_DATA = (REPLICATE, "shard")
_PIPELINE = "pipeline"


@dataclass(frozen=True)
class ProcessMesh:
    """The mesh with its process groups, over the first ranks of the world; `member` says whether this one is in."""

    mesh: Mesh
    rank: int
    group: Group
    """All ranks."""
    data_group: Group = None
    """Those that hold the same parts of the model and take different samples."""
    pipeline_group: Group = None
    """Those that hold the stages through which the same samples go."""
    peers: Group = None
    """Those that hold parts of the same parameters: all, but for other stages."""
    shard_mesh: DeviceMesh | None = None
    """The axes that fully_shard needs: (replicate, shard), or shard alone."""
    tensor_mesh: DeviceMesh | None = None

    @property
    def member(self) -> bool:
        return self.rank < self.mesh.size

    @property
    def data_rank(self) -> int:
        return self.mesh.data_rank(self.rank)

    @property
    def pipeline_rank(self) -> int:
        return self.mesh.coordinates(self.rank)[_PIPELINE]

    def first(self, tensor: Tensor) -> bool:
        """Whether this rank is the first of its peers that holds the same of a tensor, along the axes that the tensor's
        own mesh leaves out, `replicate` aside."""
        known = tensor.device_mesh.mesh_dim_names or () if isinstance(tensor, DTensor) else ()
        places = self.mesh.coordinates(self.rank)
        return not any(place for axis, place in places.items() if axis not in (*known, _PIPELINE, REPLICATE))

    @property
    def copy(self) -> tuple[int, int]:
        """Which copy of the model this rank belongs to, of how many."""
        return self.mesh.coordinates(self.rank)[REPLICATE], self.mesh.replicate

    @property
    def reports(self) -> bool:
        """Whether this rank speaks for its samples: of those that hold parts of one copy, one does; in a pipeline one
        that has the last stage."""
        places = self.mesh.coordinates(self.rank)
        return places[TENSOR] == 0 and places[_PIPELINE] == self.mesh.pipeline - 1


def make_mesh(mesh: Mesh, rank: int, device: str) -> ProcessMesh:
    """Every rank of the world must call this, members or not: groups are made together."""
    group = subgroup(range(mesh.size))
    if mesh.shard == mesh.tensor == mesh.pipeline == 1:  # DDP needs no mesh
        return ProcessMesh(mesh, rank, group, group, None, group)
    # fully_shard looks after replicas of split parameters too, which DDP refuses; it needs its axis then, even of one.
    data = tuple(axis for axis in _DATA if mesh.degrees[axis] > 1 or (axis == "shard" and mesh.replicate > 1))
    others = [axis for axis in (_PIPELINE, TENSOR) if mesh.degrees[axis] > 1]  # an axis of one would only add groups
    axes = (*others[: others.count(_PIPELINE)], *data, *others[others.count(_PIPELINE) :])
    ranks = torch.arange(mesh.size).view([mesh.degrees[axis] for axis in axes])
    whole = DeviceMesh(device, ranks, mesh_dim_names=axes)
    data_group = group_containing(mesh.groups(*_DATA), rank) if others else group
    peers = group_containing(mesh.groups(*_DATA, TENSOR), rank) if mesh.pipeline > 1 else group
    if rank >= mesh.size:
        return ProcessMesh(mesh, rank, group)
    return ProcessMesh(
        mesh,
        rank,
        group,
        data_group,
        whole.get_group(_PIPELINE) if mesh.pipeline > 1 else None,
        peers,
        whole[data] if data else None,
        whole[TENSOR] if mesh.tensor > 1 else None,
    )
