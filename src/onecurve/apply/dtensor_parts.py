"""What the handlers of DTensor operations are made of: the local parts of DTensors, and DTensors of local parts."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from onecurve.device.step_clock import step_clock

Arguments = tuple[Any, ...]
Handler = Callable[[OpOverload, Arguments, dict[str, Any]], Any]
"""A function (operation, positional arguments, keyword arguments) → result."""


def run_default(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """Run the operation with DTensor's own implementation."""
    handlers = DTensor._op_dispatcher._custom_op_handlers
    handler = handlers.pop(operation)
    try:
        return operation(*arguments, **kwargs)
    finally:
        handlers[operation] = handler


def only_placement(tensor: Any) -> Placement | None:
    """The placement of a DTensor on a one-dimensional mesh; None for any other tensor."""
    return tensor.placements[0] if isinstance(tensor, DTensor) and len(tensor.placements) == 1 else None


def local_of(tensor: DTensor) -> Tensor:
    """The part of a DTensor that this rank stores."""
    return tensor._local_tensor


def replicated(value: Any) -> Any:
    """Return the full local tensor of a DTensor; return other values unchanged."""
    return local_of(value.redistribute(placements=[Replicate()])) if isinstance(value, DTensor) else value


def all_reduce(values: Tensor, reduction: str, like: DTensor) -> Tensor:
    """All-reduce a plain tensor over the mesh of `like`."""
    with step_clock.measure("tensor"):
        reduced = collectives.all_reduce(values, reduction, (like.device_mesh, 0))
        return collectives.wait_tensor(reduced)  # type: ignore[no-untyped-call, no-any-return]


def resized(tensor: DTensor, dim: int, size: int) -> torch.Size:
    """The tensor's shape with `size` in dimension `dim`."""
    return torch.Size(size if index == dim else length for index, length in enumerate(tensor.shape))


def dtensor_like(template: DTensor, local: Tensor, placement: Placement, shape: Sequence[int]) -> DTensor:
    """A DTensor of `local` on the mesh of `template`, with this placement and global shape."""
    stride = torch.empty(shape, device="meta").stride()
    meta = TensorMeta(torch.Size(shape), stride, local.dtype)
    spec = DTensorSpec(template.device_mesh, (placement,), tensor_meta=meta, use_strided_shard_as_shard_order=False)
    return DTensor(local, spec, requires_grad=False)  # type: ignore[no-untyped-call]
