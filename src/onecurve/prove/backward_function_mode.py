"""A torch function mode that stays active during backward, where recomputed blocks run their forward again.

torch disables function modes when a function such as Tensor.backward is called under them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode


class BackwardFunctionMode(TorchFunctionMode):
    """Base class: a subclass overrides `call` to change how functions are called, in forward and in recomputation."""

    def __torch_function__(
        self, function: Any, _: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        keeps_graph = bool(kwargs.get("retain_graph") or kwargs.get("create_graph"))
        if function is Tensor.backward and not keeps_graph:
            return self._backward([arguments[0]], [kwargs.get("gradient")])
        if function is torch.autograd.backward and not keeps_graph:
            tensors = arguments[0]
            return self._backward(tensors, kwargs.get("grad_tensors") or [None] * len(tensors))
        return self.call(function, arguments, dict(kwargs))

    def call(self, function: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function, with changed arguments if necessary."""
        raise NotImplementedError

    def _backward(self, tensors: list[Tensor], gradients: list[Tensor | None]) -> None:
        """Call the autograd engine directly: torch's own functions would disable the mode first."""
        output_gradients = [
            torch.ones_like(tensor) if gradient is None else gradient
            for tensor, gradient in zip(tensors, gradients, strict=True)
        ]
        with self:
            _engine_run_backward(
                tuple(tensors), tuple(output_gradients), False, False, (), allow_unreachable=True, accumulate_grad=True
            )
