"""Runs the gradient hooks of parameters once per step, on the gradient of the mean loss of the whole batch.

autograd would run them in each backward of each rank: on the gradient of a part of the batch. A hook that is not
linear, such as one that clips values, would then compute something else under each plan.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.device.gradient_hooks import GradientHooks
from onecurve.device.local_tensor import LocalTensor


class HookedGradients:
    """The parameters of this rank that have hooks."""

    def __init__(self, hooks: Mapping[str, GradientHooks], trainable: Sequence[LocalTensor], peers: Group) -> None:
        """`peers`: the ranks that store parts of the same parameters."""
        self._hooked = [(tensor, hooks[tensor.name]) for tensor in trainable if tensor.name in hooks]
        self._peers = peers

    def run(self, factor: Tensor) -> None:
        """Replace the gradients by what the hooks make of them. `factor` turns a gradient into that of the mean loss.

        All ranks of `peers` must call this."""
        for tensor, hooks in self._hooked:
            if tensor.local.grad is not None:
                self._run(tensor, hooks, factor.to(tensor.local.dtype))

    def _run(self, tensor: LocalTensor, hooks: GradientHooks, factor: Tensor) -> None:
        assert tensor.local.grad is not None
        gradient = self._full(tensor, tensor.local.grad.mul(factor))
        try:
            for hook in [*hooks.of_gradient.values()]:
                with torch.no_grad():
                    returned = hook(gradient)
                gradient = gradient if returned is None else returned
            if hooks.after_accumulation:
                gradient = self._after_accumulation(tensor, hooks, gradient)
        except OnecurveError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"model: a gradient hook of parameter {tensor.name!r} raised {type(error).__name__}: {error}"
            ) from error
        if isinstance(gradient, FakeTensor):
            raise OnecurveError(
                f"model: a gradient hook of parameter {tensor.name!r} reads a tensor that has no memory, because the "
                "constructor made it outside of the model; make it a buffer, or an attribute of the module"
            )
        if gradient.shape != tensor.shape:
            raise OnecurveError(
                f"model: a gradient hook of parameter {tensor.name!r} returned a gradient of shape "
                f"{list(gradient.shape)} for a parameter of shape {list(tensor.shape)}"
            )
        with torch.no_grad():
            for box in tensor.boxes:
                tensor.local.grad[box.local] = gradient[box.full] / factor

    def _after_accumulation(self, tensor: LocalTensor, hooks: GradientHooks, gradient: Tensor) -> Tensor:
        """Call the hooks with a parameter that has the full gradient; return what it has then."""
        parameter = nn.Parameter(self._full(tensor, tensor.local.detach()))
        parameter.__dict__.update(tensor.local.__dict__)
        parameter.grad = gradient
        version = parameter._version
        for hook in [*hooks.after_accumulation.values()]:
            hook(parameter)
        if parameter.grad is None or parameter._version != version:
            raise OnecurveError(
                f"model: a hook of parameter {tensor.name!r} (register_post_accumulate_grad_hook) updates the "
                "parameter or removes its gradient, and the job's optimizer would update it once more; leave the "
                "update to Job(optimizer=…)"
            )
        return parameter.grad

    def _full(self, tensor: LocalTensor, values: Tensor) -> Tensor:
        """The full tensor of which `values` is this rank's part, as a new tensor."""
        if tensor.is_replicated_everywhere:
            return values.clone()
        full = values.new_zeros(tensor.shape)
        if tensor.counts_in_norm:
            for box in tensor.boxes:
                full[box.full] = values[box.local]
        return all_reduce_sum(self._peers, full)
