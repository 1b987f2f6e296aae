"""Lets fake tensors pass where a model asks for their values (experts that choose tokens): the answer is a guess.

Good for shapes and for what depends on what. Where the number of elements depends on values, there are as many as there
could be; a number that is read is 0.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_ZERO = {torch.bool: False, torch.float64: 0.0, torch.float32: 0.0, torch.float16: 0.0, torch.bfloat16: 0.0}


class DataDependentFallback(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Above a FakeTensorMode."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, operation: Any, _: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if operation is _aten._local_scalar_dense.default:
            return _ZERO.get(arguments[0].dtype, 0)
        if operation is _aten.nonzero.default:
            return _all_places(arguments[0])
        if operation is _aten.masked_select.default:
            values, mask = torch.broadcast_tensors(*arguments)  # type: ignore[no-untyped-call]
            return (values + 0 * mask).reshape(-1)
        if operation is _aten.index.Tensor and any(_is_mask(index) for index in arguments[1]):
            arguments = (arguments[0], [each for index in arguments[1] for each in _places(index)])
        return operation(*arguments, **(kwargs or {}))


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _places(index: Tensor | None) -> list[Tensor | None]:
    return list(_all_places(index).unbind(1)) if index is not None and _is_mask(index) else [index]


def _all_places(tensor: Tensor) -> Tensor:
    """As if nothing were zero; made of the tensor, so that who depends on it is still seen to."""
    return tensor.reshape(-1, 1).expand(-1, tensor.dim()).to(torch.int64)
