"""A mode for functions that lasts through backward, where recomputed blocks run again. torch's own ends there."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode


class BackwardFunctionMode(TorchFunctionMode):
    """A subclass says how a function is called."""

    def __torch_function__(
        self, function: Any, _: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        keeps = bool(kwargs.get("retain_graph") or kwargs.get("create_graph"))
        if function is Tensor.backward and not keeps:
            return self._backward([arguments[0]], [kwargs.get("gradient")])
        if function is torch.autograd.backward and not keeps:
            tensors = arguments[0]
            return self._backward(tensors, kwargs.get("grad_tensors") or [None] * len(tensors))
        return self.call(function, arguments, dict(kwargs))

    def call(self, function: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _backward(self, tensors: list[Tensor], gradients: list[Tensor | None]) -> None:
        """Straight into the engine: torch's functions would take the mode off on the way."""
        known = [torch.ones_like(x) if y is None else y for x, y in zip(tensors, gradients, strict=True)]
        with self:
            _engine_run_backward(
                tuple(tensors), tuple(known), False, False, (), allow_unreachable=True, accumulate_grad=True
            )
