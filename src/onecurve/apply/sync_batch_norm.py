"""Synchronized batch norm: statistics over the samples of all data-parallel ranks, on any device.

torch's SyncBatchNorm works on GPUs only. Forward does one all-reduce of [count, mean·count, second moment·count] per
channel; backward does one of two sums per channel. Both are in float64: the relative error of the variance is about
10^-16 · (mean/standard deviation)², below float32's precision while a mean is below 10^4 standard deviations. The
arithmetic over samples is torch's own batch norm kernel, called with the synchronized statistics.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from onecurve.apply.absent_module import AbsentModule
from onecurve.apply.running_buffers import average
from onecurve.describe.errors import OnecurveError
from onecurve.device.collectives import Group, all_reduce_sum


def synchronize(module: nn.Module, group: Group, tensor_parallel: bool = False) -> None:
    """Make every batch norm of the module compute its statistics over the group, in place."""
    if group is None:
        return
    for name, submodule in module.named_modules():
        if isinstance(submodule, _BatchNorm) and not isinstance(submodule, AbsentModule):
            if tensor_parallel:
                raise OnecurveError(
                    f"model: batch norm {name!r} cannot be synchronized over data-parallel ranks in a model that is "
                    "split along 'tensor'; use 'tensor' without 'replicate' and 'shard', or leave 'tensor' out"
                )
            submodule.__class__ = _synchronized_class(type(submodule))
            submodule.group, submodule.name_in_model = group, name  # type: ignore[assignment]


def average_statistics(module: nn.Module, group: Group) -> None:
    """Set running means and variances to their averages over the group."""
    norms = [norm for norm in module.modules() if isinstance(norm, _BatchNorm) and not isinstance(norm, AbsentModule)]
    average([buffer for norm in norms for buffer in (norm.running_mean, norm.running_var) if buffer is not None], group)


class _SynchronizedForward:
    """A mixin for torch's own batch norms, so that their names, hooks and isinstance checks still work."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)  # type: ignore[misc, no-any-return]
        self._check_input_dim(x)
        momentum, running_mean, running_var = self.momentum, None, None
        if self.track_running_stats:
            self.num_batches_tracked.add_(1)
            momentum = self.num_batches_tracked.float().reciprocal() if momentum is None else momentum
            running_mean, running_var = self.running_mean, self.running_var
        return _batch_norm(self.group, x, running_mean, running_var, self.weight, self.bias, True, momentum, self.eps)


class _SynchronizedCalls:
    """A mixin for a batch norm with a forward of its own, such as one with an activation.

    Its forward runs unchanged, but the calls of torch.nn.functional.batch_norm in it are synchronized.
    """

    def forward(self: Any, *arguments: Any, **kwargs: Any) -> Any:
        if not self.training:
            return super().forward(*arguments, **kwargs)  # type: ignore[misc]
        with _SynchronizeBatchNorm(self.group) as mode:
            output = super().forward(*arguments, **kwargs)  # type: ignore[misc]
        if not mode.triggered:
            raise OnecurveError(
                f"model: batch norm {self.name_in_model!r} of class {type(self).__name__} does not call "
                "torch.nn.functional.batch_norm, so its statistics cannot be computed over all data-parallel ranks; "
                "set Job(batch_norm='local'), or use a plan with one data-parallel rank"
            )
        return output


class _SynchronizeBatchNorm(TorchFunctionMode):
    """While this mode is active, torch.nn.functional.batch_norm computes its statistics over the group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self._group = group
        self.triggered = False
        """True if the function was called."""

    def __torch_function__(
        self, function: Any, _: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is not F.batch_norm:
            return function(*arguments, **(kwargs or {}))
        self.triggered = True
        return _batch_norm(self._group, *arguments, **(kwargs or {}))


_CLASSES: dict[type[_BatchNorm], type[_BatchNorm]] = {}
_TORCH_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)


def _synchronized_class(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    if issubclass(kind, _SynchronizedForward | _SynchronizedCalls):
        return kind
    if kind not in _CLASSES:
        mixin = _SynchronizedForward if kind.forward in _TORCH_FORWARDS else _SynchronizedCalls
        _CLASSES[kind] = type(kind.__name__, (mixin, kind), {})
    return _CLASSES[kind]


def _batch_norm(
    group: dist.ProcessGroup,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.batch_norm with statistics over the group."""
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    y, mean, variance, count = _SynchronizedNorm.apply(x, weight, bias, eps, group)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
        if running_var is not None:
            unbiased = variance * (count / (count - 1).clamp(min=1))
            running_var.lerp_(unbiased.to(running_var.dtype), momentum)
    return y  # type: ignore[no-any-return]


class _SynchronizedNorm(torch.autograd.Function):
    """Batch norm in training mode with statistics over the group. Returns (y, mean, variance, count)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        reduced_dims = [0, *range(2, x.dim())]
        local_variance, local_mean = torch.var_mean(x.detach(), reduced_dims, correction=0)
        local_count = torch.full((1,), x.numel() / x.size(1), dtype=torch.float64, device=x.device)
        mean64, variance64 = local_mean.double(), local_variance.double()
        sums = torch.cat([local_count, local_count * mean64, local_count * (variance64 + mean64**2)])
        all_reduce_sum(group, sums)
        count, (first_moment, second_moment) = sums[:1], sums[1:].chunk(2)
        mean64 = first_moment / count
        variance64 = (second_moment / count - mean64**2).clamp(min=0)
        mean, variance = mean64.to(x.dtype), variance64.to(x.dtype)
        inverse_std = (variance64 + eps).rsqrt().to(x.dtype)
        ctx.group = group
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight, mean, variance, inverse_std, count)
        ctx.eps = eps
        ctx.mark_non_differentiable(mean, variance, count)
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps), mean, variance, count

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight, mean, variance, inverse_std, count = ctx.saved_tensors
        # With constant statistics the kernel computes the direct part of the gradient, and the sums of grad_y and
        # grad_y·x̂ over this rank's samples. The part through the statistics needs these sums over all ranks.
        scale = torch.ones_like(mean) if weight is None else weight
        grad_x, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad_y.contiguous(), x, scale, mean, variance, mean, inverse_std, False, ctx.eps, [True, True, True]
        )
        sums = torch.cat([grad_bias.double(), grad_weight.double()])
        all_reduce_sum(ctx.group, sums)
        sum_grad, sum_grad_xhat = sums.chunk(2)
        slope = (-scale.double() * inverse_std.double() ** 2 * sum_grad_xhat / count).to(x.dtype)
        shift = (-scale.double() * inverse_std.double() * sum_grad / count).to(x.dtype) - slope * mean
        channel_shape = [1, -1, *[1] * (x.dim() - 2)]
        grad_x = grad_x.add_(shift.view(channel_shape)).addcmul_(x, slope.view(channel_shape))
        return grad_x, None if weight is None else grad_weight, grad_bias if ctx.has_bias else None, None, None
