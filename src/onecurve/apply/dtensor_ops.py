"""Operations that DTensor lacks for tensor-parallel models, added through its own extension points.

- Attention on CPU, which has no sharding strategy in torch: sharded over samples or heads.
- torch.split and torch.cat along a dimension that is sharded in parts (q, k and v computed by one matrix product): each
  rank splits or joins its local elements.
- Log-softmax and negative log-likelihood over a sharded vocabulary: sums over the ranks instead of gathered logits.
  torch's own implementation (loss_parallel) is correct only if one directly follows the other.
- Mean of negative log-likelihoods over sharded samples or positions: torch averages the means of the ranks, which is
  wrong if their numbers of counted targets differ (a shifted label at the end of each sequence is ignored).
- In-place changes of a view: if the view needed a redistribution, it is a copy, and the change would be lost silently.
- Indexed writes (index_add, index_put, scatter_add), which run on full tensors.
- Reading a value (Tensor.item), which must be that of the full tensor.
- Views of a tensor that a redistribution left with other strides than DTensor remembers.
- Convolution and group norm, which run on full tensors: torch's handler shards images along their width, and the group
  norm kernel needs contiguous tensors, whatever DTensor remembers about their strides.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils import _pytree as pytree

from onecurve.apply.replicated_fallback import register_replicated_fallback, run_replicated
from onecurve.device.step_clock import step_clock

_aten = torch.ops.aten
_REDUCTION_NONE, _REDUCTION_MEAN, _REDUCTION_SUM = 0, 1, 2  # at::Reduction
_UNEVEN = "Cannot flatten unevenly sharded tensor"
Arguments = tuple[Any, ...]
Handler = Callable[[OpOverload, Arguments, dict[str, Any]], Any]
"""A function (operation, positional arguments, keyword arguments) → result."""


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
        return _default(operation, arguments, kwargs)
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    template = next(tensor for tensor in [*tensors, mask] if isinstance(tensor, DTensor))
    sharded = (placement for placement in map(_only_placement, tensors) if placement in (Shard(0), Shard(1)))
    placement = next(sharded, Replicate())
    arguments = tuple(_placed(argument, placement, template) for argument in arguments)
    kwargs = kwargs | {"attn_mask": _placed(mask, _mask(mask, placement)[0], template)}
    return _default(operation, arguments, kwargs)


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
    placement = _only_placement(tensor)
    if isinstance(placement, _StridedShard) and placement.dim == dim:
        parts = int(placement.split_factor)
        size = tensor.shape[dim] // parts
        if sizes == size or sizes == [size] * parts:
            shape = _resized(tensor, dim, size)
            return [_like(tensor, chunk, Shard(dim), shape) for chunk in _local(tensor).chunk(parts, dim)]
    return _default(operation, arguments, kwargs)


def _cat(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    # torch.cat ignores empty one-dimensional tensors (key-value caches begin with one).
    tensors = [tensor for tensor in arguments[0] if tensor.dim() > 1 or tensor.numel()]
    if not tensors:
        return _default(operation, arguments, kwargs)
    dim = (arguments[1] if len(arguments) > 1 else kwargs.get("dim", 0)) % tensors[0].dim()
    all_sharded = all(isinstance(tensor, DTensor) and _only_placement(tensor) == Shard(dim) for tensor in tensors)
    if len(tensors) > 1 and all_sharded and len({tensor.shape for tensor in tensors}) == 1:
        local = torch.cat([_local(tensor) for tensor in tensors], dim)
        shape = _resized(tensors[0], dim, tensors[0].shape[dim] * len(tensors))
        return _like(tensors[0], local, _StridedShard(dim, split_factor=len(tensors)), shape)
    return _default(operation, (tensors, dim), {})


def _log_softmax(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    logits, dim, to_float = arguments
    dim %= logits.dim()
    if _only_placement(logits) != Shard(dim):
        return _default(operation, arguments, kwargs)
    local = _local(logits).float() if to_float else _local(logits)
    shifted = local - _all_reduce(local.amax(dim, keepdim=True), "max", logits)
    total = _all_reduce(shifted.exp().sum(dim, keepdim=True), "sum", logits)
    return _like(logits, shifted - total.log(), Shard(dim), logits.shape)


def _log_softmax_backward(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    gradient, output, dim, dtype = arguments
    dim %= output.dim()
    if _only_placement(output) != Shard(dim):
        return _default(operation, arguments, kwargs)
    local = _local(gradient.redistribute(placements=output.placements))
    total = _all_reduce(local.sum(dim, keepdim=True), "sum", output)
    return _like(output, (local - _local(output).exp() * total).to(dtype), Shard(dim), output.shape)


def _nll_loss(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """nll_loss_forward: (log-probabilities [N, C, …], target [N, …], weight, reduction, ignore_index) → loss, count"""
    output, target, weight, reduction, ignore_index = arguments
    if reduction == _REDUCTION_MEAN and _has_sharded_samples(output):
        local_target = _local_target(output, target)
        loss, count = operation(_local(output), local_target, _replicated(weight), _REDUCTION_SUM, ignore_index)
        count = _all_reduce(count, "sum", output)
        return _like(output, loss / count, Partial(), loss.shape), _like(output, count, Replicate(), count.shape)
    if not _has_sharded_classes(output) or weight is not None:
        return _default(operation, arguments, kwargs)
    is_local, local_class, is_counted = _local_targets(output, target, ignore_index)
    log_probabilities = _local(output).gather(1, local_class[:, None]).squeeze(1) * is_local
    losses = -_all_reduce(log_probabilities, "sum", output) * is_counted
    count = is_counted.sum().to(losses)
    loss = losses if reduction == _REDUCTION_NONE else losses.sum() / (count if reduction == _REDUCTION_MEAN else 1)
    count = count if reduction != _REDUCTION_NONE else count.new_zeros(())
    return tuple(_like(output, result, Replicate(), result.shape) for result in (loss, count))


def _nll_loss_backward(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    gradient, output, target, weight, reduction, ignore_index, count = arguments
    if reduction == _REDUCTION_MEAN and _has_sharded_samples(output):
        inputs = _replicated(gradient), _local(output), _local_target(output, target), _replicated(weight)
        local = operation(*inputs, reduction, ignore_index, _replicated(count))
        return _like(output, local, output.placements[0], output.shape)
    if not _has_sharded_classes(output) or weight is not None:
        return _default(operation, arguments, kwargs)
    is_local, local_class, is_counted = _local_targets(output, target, ignore_index)
    sample_gradient = _replicated(gradient) / (_replicated(count) if reduction == _REDUCTION_MEAN else 1)
    result = torch.zeros_like(_local(output))
    values = (-sample_gradient * is_local * is_counted).to(result.dtype).expand(len(local_class))
    result.scatter_(1, local_class[:, None], values[:, None])
    return _like(output, result, Shard(1), output.shape)


def _has_sharded_samples(output: DTensor) -> bool:
    """True if log-probabilities [N, C, …] are sharded along another dimension than that of the classes."""
    placement = _only_placement(output)
    return isinstance(placement, Shard | _StridedShard) and placement.dim != 1


def _local_target(output: DTensor, target: Tensor) -> Tensor:
    """The targets of this rank's samples or positions: targets [N, …] lack the dimension of the classes."""
    placement: Any = output.placements[0]
    dim = placement.dim - (placement.dim > 1)
    if isinstance(placement, _StridedShard):
        placement = _StridedShard(dim, split_factor=placement.split_factor)
    else:
        placement = Shard(dim)
    replicated = DTensor.from_local(_replicated(target), output.device_mesh, [Replicate()], run_check=False)
    return _local(replicated.redistribute(placements=[placement]))


def _has_sharded_classes(output: DTensor) -> bool:
    return (
        output.dim() == 2 and _only_placement(output) == Shard(1) and output.shape[1] % output.device_mesh.size() == 0
    )


def _local_targets(output: DTensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each target: is it among this rank's classes, its index among them (clamped), and does it count at all."""
    classes = _local(output).shape[1]
    target = _replicated(target)
    local_class = target - output.device_mesh.get_local_rank() * classes
    is_local = (local_class >= 0) & (local_class < classes)
    return is_local, local_class.clamp(0, classes - 1), target != ignore_index


def _on_full_tensors(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    template = next(argument for argument in arguments if isinstance(argument, DTensor))
    full = [value.contiguous() if isinstance(value, Tensor) else value for value in map(_replicated, arguments)]
    result = operation(*full, **kwargs)
    return pytree.tree_map_only(Tensor, lambda tensor: _like(template, tensor, Replicate(), tensor.shape), result)


def _read_value(operation: OpOverload, arguments: Arguments, _: dict[str, Any]) -> Any:
    """Tensor.item() of the full tensor: DTensor would read this rank's partial sum."""
    return operation(_replicated(arguments[0]))


def _view(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """A redistributed tensor is contiguous on each rank, whatever strides DTensor remembers, and may need a copy.

    A dimension that is not divided evenly, such as that of 6 samples over 4 ranks, cannot be flattened: each rank then
    views the full tensor.
    """
    try:
        return _default(operation, arguments, kwargs)
    except (RuntimeError, ValueError) as error:
        contiguous = _with_contiguous_local(arguments[0])
        if contiguous is not arguments[0]:
            return _default(operation, (contiguous, *arguments[1:]), kwargs)
        if _UNEVEN in str(error):
            return run_replicated(operation, arguments, kwargs)
        raise


def _with_contiguous_local(value: Any) -> Any:
    placement = _only_placement(value)
    if placement is None or _local(value).is_contiguous():
        return value
    return _like(value, _local(value).contiguous(), placement, value.shape)


def _indexed(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """Indexed writes on full tensors: torch shards their arguments along dimensions that do not fit together."""
    if all(_is_full(value) for value in pytree.tree_leaves((arguments, kwargs))):
        return _default(operation, arguments, kwargs)
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
    return _default(operation, arguments, kwargs)


def _storage(tensor: DTensor) -> int:
    address: int = _local(tensor).untyped_storage()._cdata
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
    _aten._log_softmax.default: _log_softmax,
    _aten._log_softmax_backward_data.default: _log_softmax_backward,
    _aten.nll_loss_forward.default: _nll_loss,
    _aten.nll_loss_backward.default: _nll_loss_backward,
    _aten.nll_loss2d_forward.default: _nll_loss,
    _aten.nll_loss2d_backward.default: _nll_loss_backward,
}


def _default(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """Run the operation with DTensor's own implementation."""
    handlers = DTensor._op_dispatcher._custom_op_handlers
    handler = handlers.pop(operation)
    try:
        return operation(*arguments, **kwargs)
    finally:
        handlers[operation] = handler


def _only_placement(tensor: Any) -> Placement | None:
    """The placement of a DTensor on a one-dimensional mesh; None for any other tensor."""
    return tensor.placements[0] if isinstance(tensor, DTensor) and len(tensor.placements) == 1 else None


def _local(tensor: DTensor) -> Tensor:
    return tensor._local_tensor


def _replicated(value: Any) -> Any:
    """Return the full local tensor of a DTensor; return other values unchanged."""
    return _local(value.redistribute(placements=[Replicate()])) if isinstance(value, DTensor) else value


def _all_reduce(values: Tensor, reduction: str, like: DTensor) -> Tensor:
    """All-reduce a plain tensor over the mesh of `like`."""
    with step_clock.measure("tensor"):
        reduced = collectives.all_reduce(values, reduction, (like.device_mesh, 0))
        return collectives.wait_tensor(reduced)  # type: ignore[no-untyped-call, no-any-return]


def _resized(tensor: DTensor, dim: int, size: int) -> torch.Size:
    """The tensor's shape with `size` in dimension `dim`."""
    return torch.Size(size if index == dim else length for index, length in enumerate(tensor.shape))


def _like(template: DTensor, local: Tensor, placement: Placement, shape: Sequence[int]) -> DTensor:
    """A DTensor of `local` on the mesh of `template`, with this placement and global shape."""
    stride = torch.empty(shape, device="meta").stride()
    meta = TensorMeta(torch.Size(shape), stride, local.dtype)
    spec = DTensorSpec(template.device_mesh, (placement,), tensor_meta=meta, use_strided_shard_as_shard_order=False)
    return DTensor(local, spec, requires_grad=False)  # type: ignore[no-untyped-call]
