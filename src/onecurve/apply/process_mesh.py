"""The plan's mesh in torch: a DeviceMesh over the axes in use, and the process groups that train together."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from onecurve.describe.mesh import Mesh
from onecurve.device.collectives import Group, group_containing, subgroup
from onecurve.device.local_tensor import REPLICATE, TENSOR

_DATA_AXES = (REPLICATE, "shard")
_PIPELINE = "pipeline"


@dataclass(frozen=True)
class ProcessMesh:
    """The mesh, this rank and its process groups. The mesh covers the first `mesh.size` ranks of the world; `member`
    is False on the others."""

    mesh: Mesh
    rank: int
    group: Group
    """All ranks of the mesh."""
    data_group: Group = None
    """The ranks that hold the same part of the model and process different samples."""
    pipeline_group: Group = None
    """The ranks that hold the pipeline stages through which the same samples pass."""
    peers: Group = None
    """The ranks that hold parts of the same parameters: all ranks except those of other pipeline stages."""
    shard_mesh: DeviceMesh | None = None
    """The mesh for fully_shard, with the axes (replicate, shard) or only shard; None if it is not used."""
    tensor_mesh: DeviceMesh | None = None
    """The one-dimensional mesh of the axis `tensor`; None if it is not used."""

    @property
    def member(self) -> bool:
        """True if this rank belongs to the mesh."""
        return self.rank < self.mesh.size

    @property
    def data_rank(self) -> int:
        """The data-parallel rank of this rank."""
        return self.mesh.data_rank(self.rank)

    @property
    def pipeline_rank(self) -> int:
        """The coordinate of this rank along the axis `pipeline`."""
        return self.mesh.coordinates(self.rank)[_PIPELINE]

    def is_first_holder(self, tensor: Tensor) -> bool:
        """True if this rank is the first of its peers that holds these elements of the tensor.

        Only the axes that the tensor's own device mesh does not contain are considered, and of those neither `pipeline`
        nor `replicate`.
        """
        tensor_axes = tensor.device_mesh.mesh_dim_names or () if isinstance(tensor, DTensor) else ()
        ignored = (*tensor_axes, _PIPELINE, REPLICATE)
        return not any(index for axis, index in self.mesh.coordinates(self.rank).items() if axis not in ignored)

    @property
    def replica(self) -> tuple[int, int]:
        """The index of this rank's replica along `replicate`, and the number of replicas."""
        return self.mesh.coordinates(self.rank)[REPLICATE], self.mesh.replicate

    @property
    def reports_metrics(self) -> bool:
        """True on exactly one of the ranks that process the same samples: the first along `tensor` of those with the
        last pipeline stage."""
        coordinates = self.mesh.coordinates(self.rank)
        return coordinates[TENSOR] == 0 and coordinates[_PIPELINE] == self.mesh.pipeline - 1


def make_mesh(mesh: Mesh, rank: int, device: str) -> ProcessMesh:
    """Create the process groups. Every rank of the world must call this, also ranks outside the mesh."""
    group = subgroup(range(mesh.size))
    if mesh.shard == mesh.tensor == mesh.pipeline == 1:  # DDP needs no DeviceMesh
        return ProcessMesh(mesh=mesh, rank=rank, group=group, data_group=group, peers=group)
    # DDP refuses tensor-parallel parameters, so fully_shard also handles their replicas; it then needs a shard axis,
    # even one with a single rank. Any other axis with a single rank would only add groups.
    data_axes = tuple(axis for axis in _DATA_AXES if mesh.degrees[axis] > 1 or (axis == "shard" and mesh.replicate > 1))
    pipeline_axes = (_PIPELINE,) if mesh.pipeline > 1 else ()
    tensor_axes = (TENSOR,) if mesh.tensor > 1 else ()
    axes = (*pipeline_axes, *data_axes, *tensor_axes)
    ranks = torch.arange(mesh.size).view([mesh.degrees[axis] for axis in axes])
    device_mesh = DeviceMesh(device, ranks, mesh_dim_names=axes)
    splits_model = bool(pipeline_axes or tensor_axes)
    data_group = group_containing(mesh.groups(*_DATA_AXES), rank) if splits_model else group
    peers = group_containing(mesh.groups(*_DATA_AXES, TENSOR), rank) if pipeline_axes else group
    if rank >= mesh.size:
        return ProcessMesh(mesh=mesh, rank=rank, group=group)
    return ProcessMesh(
        mesh=mesh,
        rank=rank,
        group=group,
        data_group=data_group,
        pipeline_group=device_mesh.get_group(_PIPELINE) if pipeline_axes else None,
        peers=peers,
        shard_mesh=device_mesh[data_axes] if data_axes else None,
        tensor_mesh=device_mesh[TENSOR] if tensor_axes else None,
    )
