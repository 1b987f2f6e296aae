"""Takes a model's casts to float32 as casts to float64, so that rounding does not stand in the way of a proof.

Norms and rotary tables are often computed in float32 whatever the model is kept in. Where two plans add up in another
order, such a cast makes 1e-8 of a difference of 1e-16.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.prove.backward_function_mode import BackwardFunctionMode


class UpcastMode(BackwardFunctionMode):
    """As a context: nothing that comes from float64 becomes float32."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False
        """Whether there was such a cast."""

    def call(self, function: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is Tensor.float and arguments[0].dtype == torch.float64:
            self.found = True
            return arguments[0]
        flat, form = pytree.tree_flatten((arguments, kwargs))
        narrow = any(each is torch.float32 for each in flat)
        if narrow and any(isinstance(each, Tensor) and each.dtype == torch.float64 for each in flat):
            self.found = True
            flat = [torch.float64 if each is torch.float32 else each for each in flat]
            arguments, kwargs = pytree.tree_unflatten(flat, form)
        return function(*arguments, **kwargs)
