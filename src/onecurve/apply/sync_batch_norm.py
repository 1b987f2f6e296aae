"""Batch norm over all ranks of a round. torch's SyncBatchNorm works on GPUs alone; this one works on any device.

One all-reduce of [count, mean·count, second moment·count] per channel forward and one of two sums per channel backward.
They are in float64: the variance loses (mean/deviation)² of its 16 digits, so float32 runs lose nothing while a mean
is below 10^4 deviations. The arithmetic over samples is torch's own batch norm kernel with the given statistics.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from onecurve.describe.errors import OnecurveError
from onecurve.device.collectives import Group, all_reduce_sum


def synchronize(module: nn.Module, group: Group, cut: bool = False) -> None:
    """Make every batch norm of the module take its statistics over the group, in place."""
    if group is None:
        return
    for name, each in module.named_modules():
        if isinstance(each, _BatchNorm):
            if cut:
                raise OnecurveError(
                    f"model: batch norm {name!r} cannot take its statistics over data ranks in a model cut along "
                    "'tensor'; use 'tensor' alone, or another axis"
                )
            each.__class__ = _synchronized_class(type(each))
            each.group = group  # type: ignore[assignment]


class BatchNormStatistics:
    """The running statistics of a module's batch norms, kept so that a step can be undone."""

    def __init__(self, module: nn.Module) -> None:
        self._norms = [each for each in module.modules() if isinstance(each, _NormBase)]
        self._before: list[tuple[Tensor, Tensor]] = []

    def keep(self) -> None:
        buffers = [buffer for each in self._norms for buffer in each.buffers(recurse=False)]
        self._before = [(buffer, buffer.clone()) for buffer in buffers]

    def undo(self, where: Tensor | bool) -> None:
        """Back to what was kept, if `where`: a flag that may still be on its way on the device."""
        for buffer, before in self._before:
            if isinstance(where, Tensor):
                buffer.copy_(torch.where(where, before, buffer))
            elif where:
                buffer.copy_(before)


@torch.no_grad()
def average_statistics(module: nn.Module, group: Group) -> None:
    """Set running means and variances to their averages over the group."""
    norms = [each for each in module.modules() if isinstance(each, _BatchNorm) and each.running_mean is not None]
    if group is None or not norms:
        return
    buffers = [buffer for each in norms for buffer in (each.running_mean, each.running_var) if buffer is not None]
    flat = torch.cat([buffer.double() for buffer in buffers])
    all_reduce_sum(group, flat).div_(group.size())
    for buffer, average in zip(buffers, torch.split(flat, [buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(average)


class _SynchronizedForward:
    """Mixed into the batch norm's own class, so that names, hooks and isinstance stay as they were."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)  # type: ignore[misc, no-any-return]
        self._check_input_dim(x)
        group: dist.ProcessGroup = self.group
        y, mean, variance, count = _SynchronizedNorm.apply(x, self.weight, self.bias, self.eps, group)  # type: ignore[no-untyped-call]
        if self.track_running_stats:
            self._update(mean, variance, count)
        return y  # type: ignore[no-any-return]

    @torch.no_grad()
    def _update(self: Any, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        self.num_batches_tracked.add_(1)
        momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


_CLASSES: dict[type[_BatchNorm], type[_BatchNorm]] = {}


def _synchronized_class(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    if issubclass(kind, _SynchronizedForward):
        return kind
    if kind not in _CLASSES:
        _CLASSES[kind] = type(kind.__name__, (_SynchronizedForward, kind), {})
    return _CLASSES[kind]


class _SynchronizedNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        over = [0, *range(2, x.dim())]
        local_variance, local_mean = torch.var_mean(x.detach(), over, correction=0)
        local_count = torch.tensor([x.numel() / x.size(1)], dtype=torch.float64, device=x.device)
        mean64, variance64 = local_mean.double(), local_variance.double()
        sums = torch.cat([local_count, local_count * mean64, local_count * (variance64 + mean64**2)])
        all_reduce_sum(group, sums)
        count, (first, second) = sums[:1], sums[1:].chunk(2)
        mean64 = first / count
        variance64 = (second / count - mean64**2).clamp(min=0)
        mean, variance = mean64.to(x.dtype), variance64.to(x.dtype)
        inverse = (variance64 + eps).rsqrt().to(x.dtype)
        ctx.group = group
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight, mean, variance, inverse, count)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance, count)
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps), mean, variance, count

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight, mean, variance, inverse, count = ctx.saved_tensors
        # With the statistics taken as constants the kernel gives the direct part of the gradient, and the sums over
        # this rank's samples of grad_y and grad_y·x̂; what flows through the statistics needs those of all ranks.
        unit = torch.ones_like(mean) if weight is None else weight
        grad_x, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad_y.contiguous(), x, unit, mean, variance, mean, inverse, False, ctx.eps, [True, True, True]
        )
        sums = torch.cat([grad_bias.double(), grad_weight.double()])
        all_reduce_sum(ctx.group, sums)
        sum_grad, sum_grad_xhat = sums.chunk(2)
        slope = (-unit.double() * inverse.double() ** 2 * sum_grad_xhat / count).to(x.dtype)
        shift = (-unit.double() * inverse.double() * sum_grad / count).to(x.dtype) - slope * mean
        channel = [1, -1, *[1] * (x.dim() - 2)]
        grad_x = grad_x.add_(shift.view(channel)).addcmul_(x, slope.view(channel))
        return grad_x, None if weight is None else grad_weight, grad_bias if ctx.has_bias else None, None, None
