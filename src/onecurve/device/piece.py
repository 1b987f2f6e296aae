"""What one rank's device holds of one tensor of the model."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@dataclass(frozen=True)
class Piece:
    """A parameter or buffer, or the local elements of it."""

    name: str
    whole: Tensor
    """As the module registers it: the tensor itself, or a distributed one."""
    local: Tensor
    """The elements held here, sharing memory with `whole`."""
    shape: tuple[int, ...]
    """Of the whole."""
    offset: tuple[int, ...]
    """Where in the whole the local elements begin."""
    counted: bool
    """Whether this rank counts the piece in norms: each element is counted once, however it is replicated."""

    def gather(self) -> Tensor:
        """The whole tensor; every rank that holds a part of it must call this."""
        with torch.no_grad():
            return self.whole.full_tensor() if isinstance(self.whole, DTensor) else self.whole.detach()

    def take_gradient(self) -> None:
        """Let the local tensor see the gradient that backward left on the whole."""
        if isinstance(self.whole, DTensor):
            gradient = self.whole.grad
            assert gradient is None or isinstance(gradient, DTensor)
            self.local.grad = None if gradient is None else gradient.to_local()


def piece_of(name: str, tensor: Tensor, first: bool) -> Piece:
    """`first`: this rank is the first of all that hold copies of plain tensors."""
    if not isinstance(tensor, DTensor):
        return Piece(name, tensor, tensor, tuple(tensor.shape), (0,) * tensor.dim(), first)
    with torch.no_grad():
        local = tensor.to_local()
    if isinstance(tensor, torch.nn.Parameter):
        local = torch.nn.Parameter(local, requires_grad=tensor.requires_grad)
    mesh = tensor.device_mesh
    _, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, tensor.placements)
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    replicas = [place for place, layout in zip(coordinate, tensor.placements, strict=True) if layout.is_replicate()]
    return Piece(name, tensor, local, tuple(tensor.shape), tuple(offset), not any(replicas))
