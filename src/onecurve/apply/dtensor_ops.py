"""Operations that DTensor lacks for tensor-parallel models, added through its own extension points.

- Attention on CPU, which has no sharding strategy in torch: sharded over samples or heads.
- torch.split and torch.cat along a dimension that is sharded in parts (q, k and v computed by one matrix product): each
  rank splits or joins its local elements.
- Losses over sharded classes or samples: see `dtensor_losses.py`.
- In-place changes of a view: if the view needed a redistribution, it is a copy, and the change would be lost silently.
- Indexed writes (index_add, index_put, scatter_add), which run on full tensors.
- Reading a value (Tensor.item), which must be that of the full tensor.
- Views of a tensor that a redistribution left with other strides than DTensor remembers.
- Convolution and group norm, which run on full tensors: torch's handler shards images along their width, and the group
  norm kernel needs contiguous tensors, whatever DTensor remembers about their strides.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils import _pytree as pytree

from onecurve.apply.dtensor_losses import LOSS_HANDLERS
from onecurve.apply.dtensor_parts import (
    Arguments,
    Handler,
    dtensor_like,
    local_of,
    only_placement,
    replicated,
    resized,
    run_default,
)
from onecurve.apply.replicated_fallback import register_replicated_fallback, run_replicated

_aten = torch.ops.aten
_UNEVEN = "Cannot flatten unevenly sharded tensor"


@cache
def register_dtensor_ops() -> None:
    """Register the operations with DTensor. Calls after the first one do nothing."""
    register_sharding(_aten._scaled_dot_product_flash_attention_for_cpu.default)(_attention)
    register_sharding(_aten._scaled_dot_product_flash_attention_for_cpu_backward.default)(_attention_backward)
    DTensor._op_dispatcher._custom_op_handlers |= _HANDLERS
    register_replicated_fallback()


def _attention(*_: Any, attn_mask: Any = None, **__: Any) -> list[tuple[list[Any], list[Any]]]:
    """Shardings of (output, log-sum-exp) and of (query, key, value, dropout, causal, mask)."""
    return [
        ([placement, placement], [placement, placement, placement, None, None, *_mask(attn_mask, placement)])
        for placement in (Replicate(), Shard(0), Shard(1))
    ]


def _attention_backward(*_: Any, attn_mask: Any = None, **__: Any) -> list[tuple[list[Any], list[Any]]]:
    """Shardings of the gradients of (query, key, value) and of (gradient, query, key, value, output, log-sum-exp,
    dropout, causal, mask)."""
    return [
        ([placement] * 3, [placement] * 6 + [None, None, *_mask(attn_mask, placement)])
        for placement in (Replicate(), Shard(0), Shard(1))
    ]


def _mask(mask: Any, placement: Placement) -> list[Placement]:
    """The placement of the mask: sharded like heads or samples, unless one mask is broadcast over all of them."""
    if mask is None:
        return []
    return [placement if isinstance(placement, Shard) and mask.shape[placement.dim] > 1 else Replicate()]


def _attention_with_mask(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """Shard all tensors alike, the mask too: DTensor redistributes positional arguments only."""
    mask = kwargs.get("attn_mask")
    if not isinstance(mask, Tensor):
        return run_default(operation, arguments, kwargs)
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    template = next(tensor for tensor in [*tensors, mask] if isinstance(tensor, DTensor))
    sharded = (placement for placement in map(only_placement, tensors) if placement in (Shard(0), Shard(1)))
    placement = next(sharded, Replicate())
    arguments = tuple(_placed(argument, placement, template) for argument in arguments)
    kwargs = kwargs | {"attn_mask": _placed(mask, _mask(mask, placement)[0], template)}
    return run_default(operation, arguments, kwargs)


def _placed(value: Any, placement: Placement, template: DTensor) -> Any:
    """A tensor with this placement on the mesh of `template`; other values unchanged."""
    if not isinstance(value, Tensor):
        return value
    if not isinstance(value, DTensor):
        value = DTensor.from_local(value, template.device_mesh, [Replicate()], run_check=False)
    return value.redistribute(placements=[placement])


_ATTENTION = (
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
)


def _split(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    tensor, sizes = arguments[:2]
    dim = (arguments[2] if len(arguments) > 2 else kwargs.get("dim", 0)) % tensor.dim()
    placement = only_placement(tensor)
    if isinstance(placement, _StridedShard) and placement.dim == dim:
        parts = int(placement.split_factor)
        size = tensor.shape[dim] // parts
        if sizes == size or sizes == [size] * parts:
            shape = resized(tensor, dim, size)
            return [dtensor_like(tensor, chunk, Shard(dim), shape) for chunk in local_of(tensor).chunk(parts, dim)]
    return run_default(operation, arguments, kwargs)


def _cat(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    # torch.cat ignores empty one-dimensional tensors (key-value caches begin with one).
    tensors = [tensor for tensor in arguments[0] if tensor.dim() > 1 or tensor.numel()]
    if not tensors:
        return run_default(operation, arguments, kwargs)
    dim = (arguments[1] if len(arguments) > 1 else kwargs.get("dim", 0)) % tensors[0].dim()
    all_sharded = all(isinstance(tensor, DTensor) and only_placement(tensor) == Shard(dim) for tensor in tensors)
    if len(tensors) > 1 and all_sharded and len({tensor.shape for tensor in tensors}) == 1:
        local = torch.cat([local_of(tensor) for tensor in tensors], dim)
        shape = resized(tensors[0], dim, tensors[0].shape[dim] * len(tensors))
        return dtensor_like(tensors[0], local, _StridedShard(dim, split_factor=len(tensors)), shape)
    return run_default(operation, (tensors, dim), {})


def _on_full_tensors(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    template = next(argument for argument in arguments if isinstance(argument, DTensor))
    full = [value.contiguous() if isinstance(value, Tensor) else value for value in map(replicated, arguments)]
    result = operation(*full, **kwargs)
    return pytree.tree_map_only(Tensor, lambda part: dtensor_like(template, part, Replicate(), part.shape), result)


def _read_value(operation: OpOverload, arguments: Arguments, _: dict[str, Any]) -> Any:
    """Tensor.item() of the full tensor: DTensor would read this rank's partial sum."""
    return operation(replicated(arguments[0]))


def _view(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """A redistributed tensor is contiguous on each rank, whatever strides DTensor remembers, and may need a copy.

    A dimension that is not divided evenly, such as that of 6 samples over 4 ranks, cannot be flattened: each rank then
    views the full tensor.
    """
    try:
        return run_default(operation, arguments, kwargs)
    except (RuntimeError, ValueError) as error:
        contiguous = _with_contiguous_local(arguments[0])
        if contiguous is not arguments[0]:
            return run_default(operation, (contiguous, *arguments[1:]), kwargs)
        if _UNEVEN in str(error):
            return run_replicated(operation, arguments, kwargs)
        raise


def _with_contiguous_local(value: Any) -> Any:
    placement = only_placement(value)
    if placement is None or local_of(value).is_contiguous():
        return value
    return dtensor_like(value, local_of(value).contiguous(), placement, value.shape)


def _indexed(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """Indexed writes on full tensors: torch shards their arguments along dimensions that do not fit together."""
    if all(_is_full(value) for value in pytree.tree_leaves((arguments, kwargs))):
        return run_default(operation, arguments, kwargs)
    return run_replicated(operation, arguments, kwargs)


def _is_full(value: Any) -> bool:
    return not isinstance(value, DTensor) or all(placement.is_replicate() for placement in value.placements)


def _in_place(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    tensor = arguments[0]
    if not isinstance(tensor, DTensor):  # a plain tensor, in which the model keeps a value (a cache)
        return run_replicated(operation, arguments, kwargs)
    base = tensor._base if tensor._is_view() else None
    if isinstance(base, DTensor) and _storage(base) != _storage(tensor):
        raise NotImplementedError(
            f"{operation} changes a view of a tensor that is sharded along the viewed dimension, which would change a "
            "copy only"
        )
    return run_default(operation, arguments, kwargs)


def _storage(tensor: DTensor) -> int:
    address: int = local_of(tensor).untyped_storage()._cdata
    return address


_IN_PLACE: tuple[OpOverload, ...] = (
    _aten.add_.Tensor,
    _aten.sub_.Tensor,
    _aten.mul_.Tensor,
    _aten.div_.Tensor,
    _aten.copy_.default,
    _aten.zero_.default,
    _aten.fill_.Scalar,
    _aten.fill_.Tensor,
    _aten.masked_fill_.Scalar,
    _aten.masked_fill_.Tensor,
)
_INDEXED: tuple[OpOverload, ...] = (
    _aten.index_add.default,
    _aten.index_add_.default,
    _aten.index_copy.default,
    _aten.index_copy_.default,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten.scatter_add.default,
    _aten.scatter_add_.default,
)

_HANDLERS: dict[OpOverload, Handler] = {
    **dict.fromkeys(_ATTENTION, _attention_with_mask),
    **dict.fromkeys(_INDEXED, _indexed),
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split,
    _aten.cat.default: _cat,
    _aten.convolution.default: _on_full_tensors,
    _aten.convolution_backward.default: _on_full_tensors,
    **dict.fromkeys(_IN_PLACE, _in_place),
    _aten.view.default: _view,
    _aten.native_group_norm.default: _on_full_tensors,
    _aten.native_group_norm_backward.default: _on_full_tensors,
    _aten._local_scalar_dense.default: _read_value,
    **LOSS_HANDLERS,
}
