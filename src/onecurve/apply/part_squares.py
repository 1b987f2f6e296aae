"""The squares of the gradients of parts of a batch, before they are added up: they show how noisy gradients are.

A part is what one rank computes in one round; under `shard`, what one rank computes in all rounds of a step.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard

from onecurve.device.local_tensor import LocalTensor


class PartSquares:
    """Adds up squares while a step is computed in `measured`."""

    def __init__(
        self, trainable: Sequence[LocalTensor], fsdp_root: FSDPModule | None, parts: int, multiplier: float
    ) -> None:
        """`parts`: number of parts of a step, on all ranks. `multiplier`: what losses are multiplied by."""
        self.parts = parts
        self._parameters = [tensor.registered for tensor in trainable]
        self._is_sharded = fsdp_root is not None
        self._factor = 1 / multiplier**2
        self._norms: list[Tensor] | None = None
        if fsdp_root is not None:
            for module in fsdp_root.modules():  # type: ignore[attr-defined]
                if isinstance(module, FSDPModule):
                    for group in fully_shard.state(module)._fsdp_param_groups:  # type: ignore[attr-defined]
                        group.post_backward = self._with_squares(group, group.post_backward)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the gradients of backward."""
        self._norms = []
        parameters = [] if self._is_sharded else self._parameters
        used = [parameter for parameter in parameters if parameter.requires_grad]  # train() may have frozen one
        hooks = [parameter.register_hook(self._add) for parameter in used]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def take(self, like: Tensor) -> Tensor:
        """The sum over this rank's parts since `measured`, or 0; on the device and in the dtype of `like`."""
        norms, self._norms = self._norms, None
        if not norms:
            return torch.zeros((), dtype=like.dtype, device=like.device)
        return torch.stack(norms).double().square().sum().to(like) * self._factor

    def _add(self, gradient: Tensor) -> None:
        if self._norms is not None:  # one small operation for each gradient: there may be many
            wide = torch.promote_types(gradient.dtype, torch.float32)
            self._norms.append(torch.linalg.vector_norm(gradient.detach(), dtype=wide))

    def _with_squares(self, group: Any, post_backward: Callable[..., Any]) -> Callable[..., Any]:
        """Look at gradients just before they are reduced. fully_shard has no hook for that."""

        @wraps(post_backward)
        def looked(*arguments: Any) -> Any:
            if self._norms is not None and group.reduce_grads:
                for parameter in group.fsdp_params:
                    parameter.accumulate_unsharded_grad_if_needed()
                    if (gradient := _unreduced(parameter)) is not None:
                        self._add(gradient)
            return post_backward(*arguments)

        return looked


def _unreduced(parameter: Any) -> Tensor | None:
    """The gradient of this rank's samples, of the full parameter."""
    if parameter.unsharded_accumulated_grad is not None:
        accumulated: Tensor = parameter.unsharded_accumulated_grad_data
        return accumulated
    if not hasattr(parameter, "_unsharded_param") or parameter.unsharded_param.grad is None:
        return None
    gradient: Tensor = parameter.unsharded_grad_data
    return gradient
