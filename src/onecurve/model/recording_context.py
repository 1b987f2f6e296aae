"""What torch and Python do differently while a constructor runs on fake tensors."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from onecurve.device.gradient_hooks import copy_gradient_hooks
from onecurve.model.fake_mode import copy_user_attributes


@contextmanager
def inline_threads() -> Iterator[None]:
    """Run what this thread submits to thread pools at once, in this thread.

    A dispatch mode belongs to one thread: in another one the constructor would read a checkpoint into real tensors.
    """
    submit, recording_thread = ThreadPoolExecutor.submit, threading.get_ident()

    def submit_inline(pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != recording_thread:
            return submit(pool, function, *args, **kwargs)
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except Exception as error:  # the caller gets it from the future
            future.set_exception(error)
        return future

    ThreadPoolExecutor.submit = submit_inline  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]


@contextmanager
def swappable_parameters() -> Iterator[None]:
    """Let `module.to(...)` replace fake parameters.

    For them, torch calls swap_tensors, which refuses tensors that have weak references; a fake mode refers to its
    tensors weakly.
    """
    swap = torch.utils.swap_tensors

    def swap_tensors(first: Tensor, second: Tensor) -> None:
        if not isinstance(first, FakeTensor) or not isinstance(second, FakeTensor):
            swap(first, second)  # type: ignore[no-untyped-call]
            return
        copy_user_attributes(first, second)  # they stay with the parameter, as they do in a real conversion
        copy_gradient_hooks(first, second)
        first.__dict__, second.__dict__ = second.__dict__, first.__dict__
        torch._C._swap_tensor_impl(first, second)

    torch.utils.swap_tensors = swap_tensors
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap


@contextmanager
def refused_parameter_classes() -> Iterator[None]:
    """Refuse to make fake parameters of a class of the user's, derived from nn.Parameter.

    torch would return a fake tensor that is no instance of that class. The constructor is then run with real tensors.
    """
    make = nn.Parameter.__new__

    def make_plain(cls: type[nn.Parameter], data: Any = None, *arguments: Any, **options: Any) -> Any:
        if cls is not nn.Parameter:
            raise TypeError(f"{cls.__name__} is a subclass of nn.Parameter, which has no fake form")
        return make(cls, data, *arguments, **options)

    nn.Parameter.__new__ = make_plain  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Parameter.__new__ = make  # type: ignore[method-assign]
