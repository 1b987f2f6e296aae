"""Losses of DTensors whose classes or samples are sharded.

- Log-softmax and negative log-likelihood over a sharded vocabulary: sums over the ranks instead of gathered logits.
  torch's own implementation (loss_parallel) is correct only if one directly follows the other.
- Mean of negative log-likelihoods over sharded samples or positions: torch averages the means of the ranks, which is
  wrong if their numbers of counted targets differ (a shifted label at the end of each sequence is ignored).
"""

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from onecurve.apply.dtensor_parts import (
    Arguments,
    Handler,
    all_reduce,
    dtensor_like,
    local_of,
    only_placement,
    replicated,
    run_default,
)

_aten = torch.ops.aten
_REDUCTION_NONE, _REDUCTION_MEAN, _REDUCTION_SUM = 0, 1, 2  # at::Reduction


def _log_softmax(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    logits, dim, to_float = arguments
    dim %= logits.dim()
    if only_placement(logits) != Shard(dim):
        return run_default(operation, arguments, kwargs)
    local = local_of(logits).float() if to_float else local_of(logits)
    shifted = local - all_reduce(local.amax(dim, keepdim=True), "max", logits)
    total = all_reduce(shifted.exp().sum(dim, keepdim=True), "sum", logits)
    return dtensor_like(logits, shifted - total.log(), Shard(dim), logits.shape)


def _log_softmax_backward(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    gradient, output, dim, dtype = arguments
    dim %= output.dim()
    if only_placement(output) != Shard(dim):
        return run_default(operation, arguments, kwargs)
    local = local_of(gradient.redistribute(placements=output.placements))
    total = all_reduce(local.sum(dim, keepdim=True), "sum", output)
    return dtensor_like(output, (local - local_of(output).exp() * total).to(dtype), Shard(dim), output.shape)


def _nll_loss(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    """nll_loss_forward: (log-probabilities [N, C, …], target [N, …], weight, reduction, ignore_index) → loss, count"""
    output, target, weight, reduction, ignore_index = arguments
    if reduction == _REDUCTION_MEAN and _has_sharded_samples(output):
        local_target = _local_target(output, target)
        loss, count = operation(local_of(output), local_target, replicated(weight), _REDUCTION_SUM, ignore_index)
        count = all_reduce(count, "sum", output)
        mean = dtensor_like(output, loss / count, Partial(), loss.shape)
        return mean, dtensor_like(output, count, Replicate(), count.shape)
    if not _has_sharded_classes(output) or weight is not None:
        return run_default(operation, arguments, kwargs)
    is_local, local_class, is_counted = _local_targets(output, target, ignore_index)
    log_probabilities = local_of(output).gather(1, local_class[:, None]).squeeze(1) * is_local
    losses = -all_reduce(log_probabilities, "sum", output) * is_counted
    count = is_counted.sum().to(losses)
    loss = losses if reduction == _REDUCTION_NONE else losses.sum() / (count if reduction == _REDUCTION_MEAN else 1)
    count = count if reduction != _REDUCTION_NONE else count.new_zeros(())
    return tuple(dtensor_like(output, result, Replicate(), result.shape) for result in (loss, count))


def _nll_loss_backward(operation: OpOverload, arguments: Arguments, kwargs: dict[str, Any]) -> Any:
    gradient, output, target, weight, reduction, ignore_index, count = arguments
    if reduction == _REDUCTION_MEAN and _has_sharded_samples(output):
        inputs = replicated(gradient), local_of(output), _local_target(output, target), replicated(weight)
        local = operation(*inputs, reduction, ignore_index, replicated(count))
        return dtensor_like(output, local, output.placements[0], output.shape)
    if not _has_sharded_classes(output) or weight is not None:
        return run_default(operation, arguments, kwargs)
    is_local, local_class, is_counted = _local_targets(output, target, ignore_index)
    sample_gradient = replicated(gradient) / (replicated(count) if reduction == _REDUCTION_MEAN else 1)
    result = torch.zeros_like(local_of(output))
    values = (-sample_gradient * is_local * is_counted).to(result.dtype).expand(len(local_class))
    result.scatter_(1, local_class[:, None], values[:, None])
    return dtensor_like(output, result, Shard(1), output.shape)


def _has_sharded_samples(output: DTensor) -> bool:
    """True if log-probabilities [N, C, …] are sharded along another dimension than that of the classes."""
    placement = only_placement(output)
    return isinstance(placement, Shard | _StridedShard) and placement.dim != 1


def _local_target(output: DTensor, target: Tensor) -> Tensor:
    """The targets of this rank's samples or positions: targets [N, …] lack the dimension of the classes."""
    placement: Any = output.placements[0]
    dim = placement.dim - (placement.dim > 1)
    if isinstance(placement, _StridedShard):
        placement = _StridedShard(dim, split_factor=placement.split_factor)
    else:
        placement = Shard(dim)
    full = DTensor.from_local(replicated(target), output.device_mesh, [Replicate()], run_check=False)
    return local_of(full.redistribute(placements=[placement]))


def _has_sharded_classes(output: DTensor) -> bool:
    return output.dim() == 2 and only_placement(output) == Shard(1) and output.shape[1] % output.device_mesh.size() == 0


def _local_targets(output: DTensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each target: is it among this rank's classes, its index among them (clamped), and does it count at all."""
    classes = local_of(output).shape[1]
    target = replicated(target)
    local_class = target - output.device_mesh.get_local_rank() * classes
    is_local = (local_class >= 0) & (local_class < classes)
    return is_local, local_class.clamp(0, classes - 1), target != ignore_index


LOSS_HANDLERS: dict[OpOverload, Handler] = {
    _aten._log_softmax.default: _log_softmax,
    _aten._log_softmax_backward_data.default: _log_softmax_backward,
    _aten.nll_loss_forward.default: _nll_loss,
    _aten.nll_loss_backward.default: _nll_loss_backward,
    _aten.nll_loss2d_forward.default: _nll_loss,
    _aten.nll_loss2d_backward.default: _nll_loss_backward,
}
