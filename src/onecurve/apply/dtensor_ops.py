"""What DTensor lacks for a model that is cut along the tensor axis, added behind its own extension points.

- Attention on CPU, which has no sharding strategy: split by samples or by heads.
- Splitting and joining along a cut dimension in parts (q, k and v made by one product): each rank splits what it holds.
- Softmax and the negative log-likelihood over a cut vocabulary: sums over ranks instead of gathered logits. torch's own
  (loss_parallel) is right only where the one directly follows the other.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.experimental import register_sharding
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils import _pytree as pytree

_aten = torch.ops.aten
_NONE, _MEAN = 0, 1  # at::Reduction
Arguments = tuple[Any, ...]
Handler = Callable[[OpOverload, Arguments, dict[str, Any]], Any]


@cache
def register_dtensor_ops() -> None:
    """Once per process."""
    register_sharding(_aten._scaled_dot_product_flash_attention_for_cpu.default)(_attention)
    register_sharding(_aten._scaled_dot_product_flash_attention_for_cpu_backward.default)(_attention_backward)
    DTensor._op_dispatcher._custom_op_handlers |= _HANDLERS


def _attention(*_: Any, attn_mask: Any = None, **__: Any) -> list[tuple[list[Any], list[Any]]]:
    """Query, key, value → output, log-sum-exp."""
    return [([p, p], [p, p, p, None, None, *_mask(attn_mask, p)]) for p in (Replicate(), Shard(0), Shard(1))]


def _attention_backward(*_: Any, attn_mask: Any = None, **__: Any) -> list[tuple[list[Any], list[Any]]]:
    """Gradient, query, key, value, output, log-sum-exp → the gradients of query, key and value."""
    return [([p] * 3, [p] * 6 + [None, None, *_mask(attn_mask, p)]) for p in (Replicate(), Shard(0), Shard(1))]


def _mask(mask: Any, placement: Placement) -> list[Placement]:
    """A mask is cut with the heads or samples unless it is one for all of them."""
    if mask is None:
        return []
    return [placement if isinstance(placement, Shard) and mask.shape[placement.dim] > 1 else Replicate()]


def _split(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    whole, sizes = arguments[:2]
    dim = (arguments[2] if len(arguments) > 2 else kwargs.get("dim", 0)) % whole.dim()
    placement = _along(whole)
    if isinstance(placement, _StridedShard) and placement.dim == dim:
        parts = int(placement.split_factor)
        size = whole.shape[dim] // parts
        if sizes == size or sizes == [size] * parts:
            shape = _resized(whole, dim, size)
            return [_like(whole, each, Shard(dim), shape) for each in _local(whole).chunk(parts, dim)]
    return _default(operation, arguments, kwargs)


def _cat(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    # An empty tensor of one dimension joins with anything (key-value caches begin with one).
    joined = [each for each in arguments[0] if each.dim() > 1 or each.numel()]
    if not joined:
        return _default(operation, arguments, kwargs)
    dim = (arguments[1] if len(arguments) > 1 else kwargs.get("dim", 0)) % joined[0].dim()
    alike = all(isinstance(each, DTensor) and _along(each) == Shard(dim) for each in joined)
    if len(joined) > 1 and alike and len({each.shape for each in joined}) == 1:
        local = torch.cat([_local(each) for each in joined], dim)
        shape = _resized(joined[0], dim, joined[0].shape[dim] * len(joined))
        return _like(joined[0], local, _StridedShard(dim, split_factor=len(joined)), shape)
    return _default(operation, (joined, dim), {})


def _log_softmax(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    logits, dim, to_float = arguments
    dim %= logits.dim()
    if _along(logits) != Shard(dim):
        return _default(operation, arguments, kwargs)
    local = _local(logits).float() if to_float else _local(logits)
    shifted = local - _over_ranks(local.amax(dim, keepdim=True), "max", logits)
    total = _over_ranks(shifted.exp().sum(dim, keepdim=True), "sum", logits)
    return _like(logits, shifted - total.log(), Shard(dim), logits.shape)


def _log_softmax_backward(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    gradient, output, dim, dtype = arguments
    dim %= output.dim()
    if _along(output) != Shard(dim):
        return _default(operation, arguments, kwargs)
    local = _local(gradient.redistribute(placements=output.placements))
    total = _over_ranks(local.sum(dim, keepdim=True), "sum", output)
    return _like(output, (local - _local(output).exp() * total).to(dtype), Shard(dim), output.shape)


def _likelihood(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """nll_loss_forward: (log-probabilities [N, C], target [N], weight, reduction, ignored) → (loss, counted)"""
    output, target, weight, reduction, ignored = arguments
    if not _has_cut_classes(output) or weight is not None:
        return _default(operation, arguments, kwargs)
    here, at, counted = _targets(output, target, ignored)
    found = _local(output).gather(1, at[:, None]).squeeze(1) * here
    losses = -_over_ranks(found, "sum", output) * counted
    count = counted.sum().to(losses)
    loss = losses if reduction == _NONE else losses.sum() / (count if reduction == _MEAN else 1)
    count = count if reduction != _NONE else count.new_zeros(())
    return tuple(_like(output, each, Replicate(), each.shape) for each in (loss, count))


def _likelihood_backward(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    gradient, output, target, weight, reduction, ignored, count = arguments
    if not _has_cut_classes(output) or weight is not None:
        return _default(operation, arguments, kwargs)
    here, at, counted = _targets(output, target, ignored)
    each = _whole(gradient) / (_whole(count) if reduction == _MEAN else 1)
    found = torch.zeros_like(_local(output))
    found.scatter_(1, at[:, None], (-each * here * counted).to(found.dtype).expand(len(at))[:, None])
    return _like(output, found, Shard(1), output.shape)


def _has_cut_classes(output: DTensor) -> bool:
    return output.dim() == 2 and _along(output) == Shard(1) and output.shape[1] % output.device_mesh.size() == 0


def _targets(output: DTensor, target: Tensor, ignored: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which targets are among this rank's classes, where they are, and which are counted at all."""
    classes = _local(output).shape[1]
    target = _whole(target)
    place = target - output.device_mesh.get_local_rank() * classes
    here = (place >= 0) & (place < classes)
    return here, place.clamp(0, classes - 1), target != ignored


def _convolution(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """torch's own is for images cut along their width; what is whole needs no more than the plain operation."""
    model = next(each for each in arguments if isinstance(each, DTensor))
    result = operation(*map(_whole, arguments), **kwargs)
    return pytree.tree_map_only(Tensor, lambda each: _like(model, each, Replicate(), each.shape), result)


_HANDLERS: dict[OpOverload, Handler] = {
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split,
    _aten.cat.default: _cat,
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution,
    _aten._log_softmax.default: _log_softmax,
    _aten._log_softmax_backward_data.default: _log_softmax_backward,
    _aten.nll_loss_forward.default: _likelihood,
    _aten.nll_loss_backward.default: _likelihood_backward,
}


def _default(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """As if there were no handler."""
    handlers = DTensor._op_dispatcher._custom_op_handlers
    handler = handlers.pop(operation)
    try:
        return operation(*arguments, **kwargs)
    finally:
        handlers[operation] = handler


def _along(tensor: Any) -> Placement | None:
    """How a tensor lies along its only mesh axis; None for a plain one."""
    return tensor.placements[0] if isinstance(tensor, DTensor) and len(tensor.placements) == 1 else None


def _local(tensor: DTensor) -> Tensor:
    return tensor._local_tensor


def _whole(tensor: Any) -> Any:
    """As a plain tensor; what is none as it is."""
    return _local(tensor.redistribute(placements=[Replicate()])) if isinstance(tensor, DTensor) else tensor


def _over_ranks(values: Tensor, how: str, like: DTensor) -> Tensor:
    reduced = collectives.all_reduce(values, how, (like.device_mesh, 0))
    return collectives.wait_tensor(reduced)  # type: ignore[no-untyped-call, no-any-return]


def _resized(tensor: DTensor, dim: int, size: int) -> torch.Size:
    return torch.Size(size if each == dim else old for each, old in enumerate(tensor.shape))


def _like(model: DTensor, local: Tensor, placement: Placement, shape: Sequence[int]) -> DTensor:
    stride = torch.empty(shape, device="meta").stride()
    meta = TensorMeta(torch.Size(shape), stride, local.dtype)
    spec = DTensorSpec(model.device_mesh, (placement,), tensor_meta=meta, use_strided_shard_as_shard_order=False)
    return DTensor(local, spec, requires_grad=False)  # type: ignore[no-untyped-call]
