"""Sees the means that a loss computes with torch's loss functions, and the number that each of them was divided by.

A scalar loss that is the result of such a call is a sum divided by a known count, so it can be split exactly, whatever
the targets are. The result is followed through what keeps that true: a factor or a constant that is a Python number, a
change of dtype or shape, and a sum of means with the same count.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from onecurve.job.mean_counts import Count, bound_arguments, has_class_weights, mean_count, name_of

_SUMS = {"add", "add_", "__radd__", "__iadd__", "sub", "sub_", "subtract", "rsub", "__rsub__", "__isub__"}
_PRODUCTS = {"mul", "mul_", "multiply", "__rmul__", "__imul__", "div", "div_", "divide", "true_divide", "__truediv__"}
_PRODUCTS |= {"__itruediv__"}
_UNCHANGED = {"neg", "negative", "float", "double", "half", "bfloat16", "to", "type", "type_as", "clone", "contiguous"}
_UNCHANGED |= {"squeeze", "view", "reshape", "flatten", "mean", "sum"}
_IN_PLACE = {"__iadd__", "__isub__", "__imul__", "__itruediv__"}


@dataclass(frozen=True)
class MeanCall:
    """A call of one of torch's loss functions with a mean."""

    name: str
    count: Count | None
    """What the mean was divided by; None if it is not known."""


class MeanCalls(TorchFunctionMode):
    """A context in which a loss runs once. Functions that torch.compile has compiled are not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[MeanCall] = []
        self._means: dict[int, tuple[Tensor, Count]] = {}
        self._counts: dict[Any, tuple[Any, Count | None]] = {}

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def count_of(self, value: Any) -> Count | None:
        """The count of a value that is a mean of these calls; None if it is not one."""
        found = self._means.get(id(value))
        return found[1] if found is not None else None

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # dynamo reads this method too, and would fail at what follows
            return function(*args, **kwargs)
        arguments = bound_arguments(function, args, kwargs)
        if arguments is None or _is_mapped(arguments):
            result = function(*args, **kwargs)
            self._follow(getattr(function, "__name__", ""), args, kwargs, result)
            return result
        count = self._count(function, arguments)
        if has_class_weights(function, arguments) and isinstance(count, Tensor) and not _saves_elsewhere():
            # The gradient of torch's mean is NaN if all kept targets have the weight 0. That of a sum is not.
            total = function(**(arguments | {"reduction": "sum"}))
            mean = (total / torch.where(count != 0, count, 1)).to(total.dtype)
        else:
            mean = function(*args, **kwargs)
        self.calls.append(MeanCall(name_of(function), count))
        if count is not None:
            self._means[id(mean)] = mean, count
        return mean

    def _count(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Count | None:
        """The count of a call. Calls with the same targets share one object, so that their means can be added."""
        key = (
            _identity(arguments.get("target")),
            _identity(arguments.get("weight")),
            arguments.get("ignore_index"),
            has_class_weights(function, arguments),
        )
        known = self._counts.get(key)
        count = mean_count(function, arguments)
        if not isinstance(count, Tensor):
            return count
        if known is None:
            known = self._counts[key] = arguments, count  # the arguments live on, so that no other has their address
        return known[1]

    def _follow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note the count of a result that is still a mean."""
        if not self._means or not isinstance(result, Tensor):
            return
        count = self._count_after(name, args, kwargs)
        if count is not None and result.dim() == 0:
            self._means[id(result)] = result, count
        elif (name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))) and result.numel() == 1:
            self._means.clear()  # one of them, or a view of one, may have become something else

    def _count_after(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Count | None:
        if not args:
            return None
        if name in _UNCHANGED:
            return self.count_of(args[0])
        if kwargs or name not in _SUMS | _PRODUCTS:
            return None
        counts = [self.count_of(each) for each in args if not isinstance(each, int | float)]
        first = counts[0] if counts else None
        if first is None or (name in _PRODUCTS and (len(counts) > 1 or self.count_of(args[0]) is None)):
            return None
        return first if all(_is_same(first, count) for count in counts) else None


def _is_same(one: Count, other: Count | None) -> bool:
    return one is other or (isinstance(one, int) and isinstance(other, int) and one == other)


def _identity(value: Any) -> Any:
    """A key that two tensors share if they are the same elements of the same memory."""
    if not isinstance(value, Tensor):
        return None
    try:
        place = value.untyped_storage()._cdata, value.storage_offset(), tuple(value.shape), value.stride()
        return (*place, value.dtype, value._version)
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own, or without a version
        return id(value)


def _is_mapped(arguments: dict[str, Any]) -> bool:
    """True inside torch.vmap and torch.func.grad, whose tensors must not leave them."""
    return any(
        isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)
        for value in arguments.values()
    )


def _saves_elsewhere() -> bool:
    """True inside torch.utils.checkpoint: what it computes again must be what was computed here."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
