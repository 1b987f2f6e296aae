"""The part of a parameter, buffer or optimizer state that this rank's device stores."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Shard, _StridedShard

from onecurve.describe.layout import Layout
from onecurve.device.collectives import Group, all_reduce_sum

TENSOR = "tensor"
"""Name of the tensor axis in torch's device meshes."""
REPLICATE = "replicate"
"""Name of the replicate axis in torch's device meshes."""

_PART_BYTES = 64 * 2**20
"""Of a tensor that is gathered part by part."""

Slices = tuple[slice, ...]
Ranges = list[tuple[int, int]]
"""Index ranges [begin, end) along one dimension."""
Value = Tensor | bool | int | float
"""One entry of an optimizer's state for a parameter."""


@dataclass(frozen=True)
class Box:
    """A rectangular block of elements that is contiguous by index both in the full tensor and in the local tensor."""

    full: Slices
    """The block's indices in the full (unsharded) tensor."""
    local: Slices
    """The block's indices in the local tensor."""

    @property
    def elements(self) -> int:
        """Number of elements in the block."""
        return math.prod(side.stop - side.start for side in self.full)


@dataclass(frozen=True)
class LocalTensor:
    """The elements of one parameter or buffer that this rank stores, and where they belong in the full tensor."""

    name: str
    registered: Tensor
    """The tensor as the module registers it: a plain tensor or a DTensor."""
    local: Tensor
    """The elements on this rank, as a plain tensor that shares memory with `registered`."""
    shape: tuple[int, ...]
    """Shape of the full tensor."""
    boxes: tuple[Box, ...]
    """The index blocks of the full tensor that make up `local`."""
    is_first_holder: bool
    """True if this rank is the first one that stores these elements, along all mesh axes except `replicate`."""
    group: Group
    """All ranks that store parts of the model."""
    held_by_earlier_stage: bool = False
    """True if an earlier pipeline stage stores the tensor too, and counts it in sums over the stages."""
    is_replicated_everywhere: bool = True
    """True if every rank of the group stores the full tensor."""
    replica: int = 0
    """This rank's coordinate along the `replicate` axis."""
    replicas: int = 1
    """Degree of the `replicate` axis."""
    of_table: bool = False
    """True if it is no tensor of the model, but a part of an embedding table."""

    @property
    def counts_in_norm(self) -> bool:
        """True if this rank adds these elements to norms, so that replicated elements are counted once."""
        return self.is_first_holder and self.replica == 0

    def gather_parts(self) -> Iterator[Tensor]:
        """Yield the full tensor in parts that follow each other in its order of elements.

        This is a collective: every rank of the group must iterate over all parts. A part that has to be gathered is at
        most 64 MiB, because it needs as much memory on every device; the next part overwrites it.
        """
        if self.is_replicated_everywhere:
            yield self.registered.detach()
            return
        most = _PART_BYTES // self.local.dtype.itemsize
        memory = self.local.new_empty(min(most, math.prod(self.shape)))
        for region in _contiguous_regions(self.shape, most):
            with torch.no_grad():
                shape = [side.stop - side.start for side in region]
                part = memory[: math.prod(shape)].view(shape).zero_()
                if self.counts_in_norm and not self.held_by_earlier_stage:
                    for box in self.boxes:
                        if (overlap := _overlap(region, box)) is not None:
                            part[overlap.full] = self.local[overlap.local]
                yield all_reduce_sum(self.group, part)

    def take_gradient(self) -> None:
        """Set `local.grad` to this rank's part of the gradient that backward stored on a DTensor."""
        if isinstance(self.registered, DTensor):
            gradient = self.registered.grad
            assert gradient is None or isinstance(gradient, DTensor)
            if gradient is not None and gradient.placements != self.registered.placements:
                # With sequence parallelism the gradient is a partial sum over the tensor axis.
                gradient = gradient.redistribute(placements=self.registered.placements)
            self.local.grad = None if gradient is None else gradient.to_local()


def local_tensor_of(
    name: str,
    tensor: Tensor,
    is_first_holder: bool,
    group: Group = None,
    replica: tuple[int, int] = (0, 1),
    of_table: bool = False,
) -> LocalTensor:
    """Describe this rank's part of a tensor that a module registers.

    Args:
        name: The tensor's name in the model.
        tensor: A plain tensor or a DTensor.
        is_first_holder: True if this rank is the first one that stores the tensor, along the axes that are neither in
            the tensor's own mesh nor `replicate`.
        group: All ranks that store parts of the model.
        replica: This rank's coordinate along the `replicate` axis, and the degree of that axis.
        of_table: True if it is a part of an embedding table.
    """
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        full_slices = tuple(slice(0, size) for size in shape)
        return LocalTensor(
            name=name,
            registered=tensor,
            local=tensor,
            shape=shape,
            boxes=(Box(full_slices, full_slices),),
            is_first_holder=is_first_holder,
            group=group,
            replica=replica[0],
            replicas=replica[1],
            of_table=of_table,
        )
    with torch.no_grad():
        local = tensor.to_local()
    if isinstance(tensor, torch.nn.Parameter):
        local = torch.nn.Parameter(local, requires_grad=tensor.requires_grad)
    return LocalTensor(
        name=name,
        registered=tensor,
        local=local,
        shape=shape,
        boxes=tuple(_boxes(tensor)),
        is_first_holder=is_first_holder and _is_first_in_mesh(tensor),
        group=group,
        is_replicated_everywhere=False,
        replica=replica[0],
        replicas=replica[1],
    )


def absent_tensor(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, group: Group
) -> LocalTensor:
    """Describe a tensor of which this rank stores nothing, because it belongs to other pipeline stages."""
    return LocalTensor(
        name=name,
        registered=torch.empty(shape, dtype=dtype, device="meta"),
        local=torch.empty(0, dtype=dtype, device=device),
        shape=shape,
        boxes=(),
        is_first_holder=False,
        group=group,
        is_replicated_everywhere=False,
    )


def _contiguous_regions(shape: tuple[int, ...], elements: int) -> Iterator[Slices]:
    """Cut a shape into blocks of at most `elements` elements that follow each other in the order of elements."""
    if not shape:
        yield ()
        return
    size, *inner = shape
    in_one = math.prod(inner)
    if in_one > elements:
        for index in range(size):
            for rest in _contiguous_regions(tuple(inner), elements):
                yield slice(index, index + 1), *rest
        return
    step = elements // max(in_one, 1)
    for begin in range(0, size, step):
        yield slice(begin, min(begin + step, size)), *(slice(0, side) for side in inner)


def _overlap(region: Slices, box: Box) -> Box | None:
    """The part of a box that lies in a region: its indices in the region and in the local tensor; None if nothing."""
    in_region, in_local = [], []
    for side, full, local in zip(region, box.full, box.local, strict=True):
        begin, end = max(side.start, full.start), min(side.stop, full.stop)
        if begin >= end:
            return None
        in_region.append(slice(begin - side.start, end - side.start))
        in_local.append(slice(local.start + begin - full.start, local.start + end - full.start))
    return Box(tuple(in_region), tuple(in_local))


def _is_first_in_mesh(tensor: DTensor) -> bool:
    """True if this rank has coordinate 0 on all axes of the mesh that replicate the tensor, except `replicate`."""
    mesh = tensor.device_mesh
    axes = zip(mesh.mesh_dim_names or (), _coordinate(tensor), tensor.placements, strict=True)
    return not any(coordinate for axis, coordinate, placement in axes if placement.is_replicate() and axis != REPLICATE)


def _boxes(tensor: DTensor) -> list[Box]:
    """The blocks of a DTensor on this rank: first sharded along the tensor axis, then that shard by fully_shard."""
    ranges: list[Ranges] = [[(0, size)] for size in tensor.shape]
    mesh = tensor.device_mesh
    axes = list(zip(mesh.mesh_dim_names or (), tensor.placements, _coordinate(tensor), mesh.shape, strict=True))
    for axis, placement, coordinate, degree in sorted(axes, key=lambda entry: entry[0] != TENSOR):
        if isinstance(placement, Shard | _StridedShard):
            dim = placement.dim
            if axis == TENSOR:
                parts = int(placement.split_factor) if isinstance(placement, _StridedShard) else 1
                ranges[dim] = Layout(dim, parts).runs(tensor.shape[dim], coordinate, degree)
            else:
                ranges[dim] = _chunk(ranges[dim], coordinate, degree)
    pairs_by_dim = [_full_and_local_slices(dim_ranges) for dim_ranges in ranges]
    return [
        Box(tuple(full for full, _ in pairs), tuple(local for _, local in pairs))
        for pairs in itertools.product(*pairs_by_dim)
    ]


def _coordinate(tensor: DTensor) -> list[int]:
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    return list(coordinate)


def _chunk(ranges: Ranges, coordinate: int, degree: int) -> Ranges:
    """The part of the concatenated ranges that torch.chunk assigns to rank `coordinate` of `degree`."""
    length = sum(end - begin for begin, end in ranges)
    size = -(-length // degree)
    first, last = min(coordinate * size, length), min((coordinate + 1) * size, length)
    chunk, offset = [], 0
    for begin, end in ranges:
        low, high = max(first - offset, 0), min(last - offset, end - begin)
        if low < high:
            chunk.append((begin + low, begin + high))
        offset += end - begin
    return chunk


def _full_and_local_slices(ranges: Ranges) -> list[tuple[slice, slice]]:
    """For each range, its slice of the full dimension and its slice of the local dimension."""
    slices, offset = [], 0
    for begin, end in ranges:
        slices.append((slice(begin, end), slice(offset, offset + end - begin)))
        offset += end - begin
    return slices
