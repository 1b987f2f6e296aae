"""Copies of objects that a module may change, such as a key-value cache. The copies share the tensors inside them."""

import copy
from typing import Any, TypeVar

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

T = TypeVar("T")


def copy_sharing_tensors(value: T) -> T:
    """Deep-copy an object, but not the tensors inside it."""
    with _DeepcopySharesTensors():
        return copy.deepcopy(value)


class _DeepcopySharesTensors(TorchFunctionMode):
    def __torch_function__(
        self, function: Any, _: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in (Tensor.__deepcopy__, FakeTensor.__deepcopy__):
            return arguments[0]
        return function(*arguments, **(kwargs or {}))
