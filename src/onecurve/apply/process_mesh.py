"""The plan's mesh in torch: a DeviceMesh over the axes in use, and the process groups that train together."""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from onecurve.describe.mesh import AXES, Mesh
from onecurve.device.collectives import Group
from onecurve.device.local_tensor import REPLICATE, TENSOR
from onecurve.device.process_groups import align_group_names, new_member_group

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
    replica_group: Group = None
    """The ranks that hold the same parameters: those along `replicate`."""
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
    def replica_ranks(self) -> list[int]:
        """The ranks of the replica group."""
        return self.mesh.ranks_along(self.rank, REPLICATE)

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
    """Create the process groups. Every rank of the world must call this, also ranks outside the mesh.

    A rank creates only the groups that it belongs to, so the number of groups does not grow with the mesh. All ranks
    create them in the order below: while a rank waits for the members of its k-th group, each of them is creating its
    k-th group, which is the same one, or an earlier one, so no ranks wait for each other in a circle.
    """
    if mesh.size == 1:
        return ProcessMesh(mesh=mesh, rank=rank, group=None)
    align_group_names()
    if rank >= mesh.size:
        return ProcessMesh(mesh=mesh, rank=rank, group=None)
    groups = _RankGroups(mesh, rank)
    mesh_group = groups.along(*AXES)
    pipeline_group = groups.along(_PIPELINE)
    device_mesh = _device_mesh(groups, device)
    return ProcessMesh(
        mesh=mesh,
        rank=rank,
        group=mesh_group,
        data_group=groups.along(*_DATA_AXES),
        pipeline_group=pipeline_group,
        replica_group=groups.along(REPLICATE),  # exists already: another axis beside it needs a device mesh
        peers=groups.along(*_DATA_AXES, TENSOR),
        shard_mesh=_submesh(device_mesh, _DATA_AXES),
        tensor_mesh=_submesh(device_mesh, (TENSOR,)),
    )


class _RankGroups:
    """The process groups that one rank belongs to, each created at its first use."""

    def __init__(self, mesh: Mesh, rank: int) -> None:
        self.mesh = mesh
        self.rank = rank
        self._groups: dict[tuple[str, ...], dist.ProcessGroup] = {}

    def along(self, *axes: str) -> Group:
        """Return the group of the ranks that differ from this rank only along `axes`; None if it is alone."""
        split = tuple(axis for axis in axes if self.mesh.degrees[axis] > 1)
        return self._group(split) if split else None

    def along_axis(self, axis: str) -> dist.ProcessGroup:
        """Return the group along one axis, also if this rank is alone."""
        return self._group((axis,))

    def _group(self, axes: tuple[str, ...]) -> dist.ProcessGroup:
        if axes not in self._groups:
            self._groups[axes] = self._create(axes)
        return self._groups[axes]

    def _create(self, axes: tuple[str, ...]) -> dist.ProcessGroup:
        sends = axes == (_PIPELINE,)  # the stages exchange activations outside of collectives
        size = math.prod(self.mesh.degrees[axis] for axis in axes)
        if size == dist.get_world_size() and not sends:
            assert dist.group.WORLD is not None
            return dist.group.WORLD
        return new_member_group(self.mesh.ranks_along(self.rank, *axes), "_".join(axes), sends=sends)


def _device_mesh(groups: _RankGroups, device: str) -> DeviceMesh | None:
    """Create the mesh of the ranks of this rank's pipeline stage, over the axes that fully_shard and DTensor need.

    fully_shard combines its mesh with that of tensor-parallel parameters, and requires that both are slices of one.
    """
    mesh = groups.mesh
    if mesh.shard == mesh.tensor == mesh.pipeline == 1:  # DDP needs no DeviceMesh
        return None
    # DDP refuses tensor-parallel parameters, so fully_shard also handles their replicas; it then needs a shard axis,
    # even one with a single rank. Any other axis with a single rank would only add groups.
    axes = tuple(
        axis for axis in (*_DATA_AXES, TENSOR) if mesh.degrees[axis] > 1 or (axis == "shard" and mesh.replicate > 1)
    )
    if not axes:
        return None
    ranks = torch.tensor(mesh.ranks_along(groups.rank, *axes)).view([mesh.degrees[axis] for axis in axes])
    return DeviceMesh.from_group([groups.along_axis(axis) for axis in axes], device, ranks, mesh_dim_names=axes)


def _submesh(device_mesh: DeviceMesh | None, axes: tuple[str, ...]) -> DeviceMesh | None:
    """Return the mesh of those of the `axes` that the device mesh has; None if it has none of them."""
    present = tuple(axis for axis in device_mesh.mesh_dim_names or () if axis in axes) if device_mesh else ()
    return device_mesh[present] if device_mesh and present else None
