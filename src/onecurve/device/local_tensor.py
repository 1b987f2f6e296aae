"""What one rank's device holds of one tensor of the model."""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Shard, _StridedShard

from onecurve.describe.layout import Layout
from onecurve.device.collectives import Group, all_reduce_sum

TENSOR = "tensor"
"""The name of the tensor axis in torch's meshes."""
REPLICATE = "replicate"

Slices = tuple[slice, ...]
Value = Tensor | bool | int | float
"""What an optimizer keeps of a parameter."""


@dataclass(frozen=True)
class Box:
    """Elements that lie side by side in the whole and here."""

    whole: Slices
    local: Slices

    @property
    def elements(self) -> int:
        return math.prod(side.stop - side.start for side in self.whole)


@dataclass(frozen=True)
class LocalTensor:
    """A parameter or buffer, or the local elements of it."""

    name: str
    whole: Tensor
    """As the module registers it: the tensor itself, or a distributed one."""
    local: Tensor
    """The elements held here, sharing memory with `whole`."""
    shape: tuple[int, ...]
    """Of the whole."""
    boxes: tuple[Box, ...]
    """Which of the whole's elements the local ones are."""
    lead: bool
    """Whether this rank is the first that holds these elements, along all axes but `replicate`."""
    group: Group
    """All ranks that hold parts of the model."""
    repeated: bool = False
    """Whether an earlier pipeline stage has it as well, and counts it where the stages' sums are added."""
    everywhere: bool = True
    """Whether every rank of the group has the whole."""
    copy: int = 0
    """Which of the copies along `replicate` this is."""
    copies: int = 1

    @property
    def counted(self) -> bool:
        """Whether this rank counts the piece in norms: each element is counted once, however it is replicated."""
        return self.lead and self.copy == 0

    def gather(self) -> Tensor:
        """The whole tensor; every rank of the group must call this."""
        with torch.no_grad():
            if self.everywhere:
                return self.whole.detach()
            found = torch.zeros(self.shape, dtype=self.local.dtype, device=self.local.device)
            if self.counted and not self.repeated:
                for box in self.boxes:
                    found[box.whole] = self.local[box.local]
            return all_reduce_sum(self.group, found)

    def take_gradient(self) -> None:
        """Let the local tensor see the gradient that backward left on the whole."""
        if isinstance(self.whole, DTensor):
            gradient = self.whole.grad
            assert gradient is None or isinstance(gradient, DTensor)
            if gradient is not None and gradient.placements != self.whole.placements:
                gradient = gradient.redistribute(placements=self.whole.placements)  # sums of sequence-sharded parts
            self.local.grad = None if gradient is None else gradient.to_local()


def local_tensor_of(
    name: str, tensor: Tensor, first: bool, group: Group = None, copy: tuple[int, int] = (0, 1)
) -> LocalTensor:
    """`first`: this rank is the first of all that hold the same, as far as the tensor's own mesh and `replicate` do not
    say. `copy`: which copy along `replicate`, of how many."""
    if not isinstance(tensor, DTensor):
        whole = tuple(slice(0, size) for size in tensor.shape)
        boxes = (Box(whole, whole),)
        return LocalTensor(name, tensor, tensor, tuple(tensor.shape), boxes, first, group, copy=copy[0], copies=copy[1])
    with torch.no_grad():
        local = tensor.to_local()
    if isinstance(tensor, torch.nn.Parameter):
        local = torch.nn.Parameter(local, requires_grad=tensor.requires_grad)
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    axes = zip(tensor.device_mesh.mesh_dim_names or (), coordinate, tensor.placements, strict=True)
    lead = first and not any(place for axis, place, layout in axes if layout.is_replicate() and axis != REPLICATE)
    cut = tuple(_boxes(tensor))
    return LocalTensor(name, tensor, local, tuple(tensor.shape), cut, lead, group, False, False, copy[0], copy[1])


def absent_tensor(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, group: Group
) -> LocalTensor:
    """Of a tensor that other pipeline stages have."""
    whole = torch.empty(shape, dtype=dtype, device="meta")
    return LocalTensor(
        name, whole, torch.empty(0, dtype=dtype, device=device), shape, (), False, group, everywhere=False
    )


def _boxes(tensor: DTensor) -> list[Box]:
    """A parameter is first cut along the tensor axis, and what a rank then holds by fully_shard."""
    runs = [[(0, size)] for size in tensor.shape]
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    axes = list(zip(mesh.mesh_dim_names or (), tensor.placements, coordinate, mesh.shape, strict=True))
    for axis, placement, place, degree in sorted(axes, key=lambda each: each[0] != TENSOR):
        if isinstance(placement, Shard | _StridedShard):
            here = runs[placement.dim]
            if axis == TENSOR:
                parts = int(placement.split_factor) if isinstance(placement, _StridedShard) else 1
                runs[placement.dim] = Layout(placement.dim, parts).runs(tensor.shape[placement.dim], place, degree)
            else:
                runs[placement.dim] = _chunk(here, place, degree)
    located = [_located(each) for each in runs]
    return [Box(tuple(w for w, _ in each), tuple(h for _, h in each)) for each in itertools.product(*located)]


def _chunk(runs: list[tuple[int, int]], place: int, degree: int) -> list[tuple[int, int]]:
    """The part of these stretches, laid end to end, that torch.chunk would give to `place`."""
    length = sum(end - begin for begin, end in runs)
    size = -(-length // degree)
    first, last = min(place * size, length), min((place + 1) * size, length)
    found, passed = [], 0
    for begin, end in runs:
        low, high = max(first - passed, 0), min(last - passed, end - begin)
        if low < high:
            found.append((begin + low, begin + high))
        passed += end - begin
    return found


def _located(runs: list[tuple[int, int]]) -> list[tuple[slice, slice]]:
    """Each stretch of the whole with the place it has here."""
    found, passed = [], 0
    for begin, end in runs:
        found.append((slice(begin, end), slice(passed, passed + end - begin)))
        passed += end - begin
    return found
