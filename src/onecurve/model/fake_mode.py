"""A FakeTensorMode whose tensors cannot get into a real run.

torch lets an operation outside the mode mix fake and real tensors. The result is fake, or, if the operation writes into
a real tensor, the write is left out without a word; a copy of the memory behind a fake tensor ends the process. A fake
tensor gets into a real run if a constructor or a trace leaves it in an object that outlives it, such as a cache of
masks. Inside `refuse_fake_tensors` every such use is an error that names the module.
"""

import copy
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError
from onecurve.model.running_module import module_text, running_modules

_DISPATCH_OF_A_TENSOR = inspect.unwrap(FakeTensor.__torch_dispatch__.__func__).__code__  # type: ignore[attr-defined]


_real_runs = 0
"""Number of active `refuse_fake_tensors` contexts."""


@contextmanager
def refuse_fake_tensors() -> Iterator[None]:
    """While active, an operation on a fake tensor is an error, unless its mode was entered explicitly."""
    global _real_runs
    _real_runs += 1
    try:
        yield
    finally:
        _real_runs -= 1


class GuardedFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Obeys `refuse_fake_tensors`, and refuses every access to the memory behind its tensors."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._allow_unsafe_data_ptr_access = False
        self._depth = 0

    def __enter__(self) -> "GuardedFakeMode":
        caller = sys._getframe(1)
        # For an operation outside the mode torch enters it by itself, and so it does for operations within operations.
        if _real_runs and self._depth == 0 and caller.f_code is _DISPATCH_OF_A_TENSOR:
            raise OnecurveError(_leak_message(caller))
        super().__enter__()
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        super().__exit__(kind, error, trace)


def _leak_message(frame: FrameType) -> str:
    operation = frame.f_locals.get("func", "an operation")
    where = module_text(running_modules(frame))
    arguments = pytree.tree_leaves((frame.f_locals.get("args"), frame.f_locals.get("kwargs")))
    if any(isinstance(argument, nn.Parameter) for argument in arguments):
        return (
            f"{where}: {operation} reads a parameter that is not part of the model on this rank. If it belongs to a "
            "block, only the pipeline stage of that block can use it: use another axis. Otherwise, register it in its "
            "module"
        )
    return (
        f"{where}: {operation} reads a tensor that has no memory, because the model's constructor or its trace on fake "
        "tensors left it in an object that is not part of the module (a cache, a global variable, a closure); store it "
        "with register_buffer, or create it in forward"
    )


def copy_user_attributes(source: Tensor, target: Tensor) -> None:
    """Copy the attributes that the user set on a tensor, and not those of a FakeTensor's own."""
    target.__dict__.update(user_attributes(source))


def user_attributes(tensor: Tensor) -> dict[str, Any]:
    """The attributes that the user set on a tensor."""
    return {name: value for name, value in tensor.__dict__.items() if name not in _own_attributes()}


def user_attributes_of(model: nn.Module) -> dict[str, dict[str, Any]]:
    """The attributes that the user set on parameters, by every name of the parameter."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: found for name, parameter in named if (found := user_attributes(parameter))}


@cache
def _own_attributes() -> frozenset[str]:
    """Names of the attributes that torch itself sets on a fake parameter."""
    with torch.utils._python_dispatch._disable_current_modes(), FakeTensorMode():
        return frozenset(nn.Parameter(torch.empty(0)).__dict__)


def _deepcopy(self: FakeTensor, memo: dict[int, Any]) -> Any:
    """Deep-copy a fake tensor inside its mode. torch's own deep copy reads the memory behind it."""
    if has_torch_function_unary(self):
        # This function, not that of Tensor: a mode, such as torch.device("cpu"), calls what it is given.
        return handle_torch_function(_deepcopy, (self,), self, memo)
    if id(self) in memo:
        return memo[id(self)]
    if not self.is_leaf:
        raise RuntimeError("only tensors that are graph leaves can be deep-copied")
    with self.fake_mode, torch.no_grad():
        copied: Tensor = self.clone()
        if isinstance(self, nn.Parameter):
            copied = nn.Parameter(copied, requires_grad=self.requires_grad)
            memo[id(self)] = copied
            return copied  # without its attributes, as torch copies a parameter
        copied.requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        copied.grad = copy.deepcopy(self.grad, memo)
    copied.__dict__.update(copy.deepcopy(user_attributes(self), memo))
    return copied


FakeTensor.__deepcopy__ = _deepcopy  # type: ignore[assignment, method-assign]
