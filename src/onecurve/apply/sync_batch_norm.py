"""Synchronized batch norm: statistics over the samples of all data-parallel ranks, on any device.

torch's SyncBatchNorm works on GPUs only. Forward does one all-reduce of [count, mean·count, second moment·count] per
channel; backward does one of two sums per channel. Both are in float64: the relative error of the variance is about
10^-16 · (mean/standard deviation)², below float32's precision while a mean is below 10^4 standard deviations. The
arithmetic over samples is torch's own batch norm kernel, called with the synchronized statistics. For an input in 16
bits the statistics, weight and bias are in float32, as in torch's own batch norm.
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
from onecurve.device.step_clock import step_clock


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
            running_mean, running_var = self.running_mean, self.running_var
            if momentum is None:  # the average over all steps; a number would make the host wait for the device
                momentum = self.num_batches_tracked.to(running_mean.dtype).reciprocal()
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
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """torch.nn.functional.batch_norm with statistics over the group."""
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, eps=eps)
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
        count = x.numel() / x.size(1)
        local_mean, local_square = _moments(x.detach(), count)
        sums = torch.cat([torch.full((1,), count, dtype=torch.float64, device=x.device), local_mean, local_square])
        sums[1:].mul_(count)
        with step_clock.measure("batch_norm"):
            all_reduce_sum(group, sums)
        total, (first_moment, second_moment) = sums[:1], sums[1:].chunk(2)
        mean64 = first_moment / total
        variance64 = (second_moment / total - mean64**2).clamp(min=0)
        dtype = _statistics_dtype(x)
        mean, variance = mean64.to(dtype), variance64.to(dtype)
        inverse_std = (variance64 + eps).rsqrt().to(dtype)
        scale = torch.ones_like(mean) if weight is None else weight.to(dtype)
        ctx.group, ctx.eps = group, eps
        ctx.dtypes = [None if parameter is None else parameter.dtype for parameter in (weight, bias)]
        ctx.save_for_backward(x, scale, mean, variance, inverse_std, total)
        ctx.mark_non_differentiable(mean, variance, total)
        shift = None if bias is None else bias.to(dtype)
        return F.batch_norm(x, mean, variance, scale, shift, training=False, eps=eps), mean, variance, total

    @staticmethod
    def backward(
        ctx: Any, grad_y: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, scale, mean, variance, inverse_std, total = ctx.saved_tensors
        # With constant statistics the kernel computes the direct part of the gradient, and the sums of grad_y and
        # grad_y·x̂ over this rank's samples. The part through the statistics needs these sums over all ranks.
        grad_x, grad_weight, grad_bias = torch.ops.aten.native_batch_norm_backward(
            grad_y.contiguous(), x, scale, mean, variance, mean, inverse_std, False, ctx.eps, [True, True, True]
        )
        sums = torch.cat([grad_bias.double(), grad_weight.double()])
        with step_clock.measure("batch_norm"):
            all_reduce_sum(ctx.group, sums)
        sum_grad, sum_grad_xhat = sums.chunk(2)
        slope = (-scale.double() * inverse_std.double() ** 2 * sum_grad_xhat / total).to(scale.dtype)
        shift = (-scale.double() * inverse_std.double() * sum_grad / total).to(scale.dtype) - slope * mean
        channel_shape = [1, -1, *[1] * (x.dim() - 2)]
        grad_x = grad_x.add_(shift.view(channel_shape)).addcmul_(x, slope.view(channel_shape))
        grad_weight, grad_bias = (
            None if dtype is None else gradient.to(dtype)
            for gradient, dtype in zip((grad_weight, grad_bias), ctx.dtypes, strict=True)
        )
        return grad_x, grad_weight, grad_bias, None, None


def _statistics_dtype(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in (torch.bfloat16, torch.float16) else x.dtype


def _moments(x: Tensor, count: float) -> tuple[Tensor, Tensor]:
    """The means of x and of its square per channel, in float64; computed without a copy of x in another dtype."""
    reduced_dims = [0, *range(2, x.dim())]
    if _statistics_dtype(x) == x.dtype:
        variance, mean = (moment.double() for moment in torch.var_mean(x, reduced_dims, correction=0))
        return mean, variance + mean**2
    mean = x.mean(reduced_dims, dtype=torch.float32)
    norm = torch.linalg.vector_norm(x, 2, reduced_dims, dtype=torch.float32)
    return mean.double(), norm.double() ** 2 / count
