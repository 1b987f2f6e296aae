"""Turns a model's casts from float64 to float32 into casts to float64, so that rounding does not hide real differences.

Norms and rotary tables are often computed in float32 whatever the dtype of the model. If two plans sum in a different
order, such a cast turns a difference of 1e-16 into one of 1e-8.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.prove.backward_function_mode import BackwardFunctionMode

_GROUPED_PRODUCTS = (torch._grouped_mm, F.grouped_mm)
"""Products of groups of rows, each with its own matrix (experts): torch has no kernel for float64."""


class UpcastMode(BackwardFunctionMode):
    """While this mode is active, a function called with a float64 tensor and dtype float32 gets float64 instead."""

    def __init__(self) -> None:
        super().__init__()
        self.triggered = False
        """True if a cast was changed."""

    def call(self, function: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function in _GROUPED_PRODUCTS and arguments[0].dtype == torch.float64:
            return _grouped_product(*arguments, **kwargs)
        if function is Tensor.float and arguments[0].dtype == torch.float64:
            self.triggered = True
            return arguments[0]
        leaves, structure = pytree.tree_flatten((arguments, kwargs))
        has_float32 = any(leaf is torch.float32 for leaf in leaves)
        if has_float32 and any(isinstance(leaf, Tensor) and leaf.dtype == torch.float64 for leaf in leaves):
            self.triggered = True
            leaves = [torch.float64 if leaf is torch.float32 else leaf for leaf in leaves]
            arguments, kwargs = pytree.tree_unflatten(leaves, structure)
        return function(*arguments, **kwargs)


def _grouped_product(a: Tensor, b: Tensor, *, offs: Tensor | None = None, bias: Any = None, **_: Any) -> Tensor:
    """The same product, one group after the other."""
    assert bias is None
    if offs is None or a.dim() != 2 or b.dim() != 3:
        raise NotImplementedError("a grouped matrix product in float64 needs rows [N, K], matrices [G, K, M] and offs")
    ends = [int(end) for end in offs.unbind()]  # a distributed tensor has no tolist()
    groups = [a[begin:end] @ matrix for begin, end, matrix in zip([0, *ends], ends, b, strict=False)]
    return torch.cat([*groups, a.new_zeros(len(a) - ends[-1], b.shape[-1])])
