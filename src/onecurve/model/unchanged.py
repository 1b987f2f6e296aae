"""Runs a model for a trial without a trace: afterwards everything that it may change is what it was before."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from onecurve.device.compilation import uncompiled
from onecurve.device.rng import preserve_rng_state
from onecurve.model.python_state import python_state_kept


@contextmanager
def state_kept(model: nn.Module, *functions: Any) -> Iterator[None]:
    """Context manager that restores the model's buffers, the host's random generators, and what `functions`, such as a
    loss, change. Inside, compiled modules run as they were written."""
    with buffers_kept(model), uncompiled(), functions_kept(*functions, model=model):
        yield


@contextmanager
def functions_kept(*functions: Any, model: nn.Module | None = None) -> Iterator[None]:
    """Context manager that restores what functions of the user change: Python values, and the buffers of a loss or
    metric that is a module. `model`: its Python values are restored too, its buffers are not."""
    with ExitStack() as stack:
        for function in functions:
            if isinstance(function, nn.Module):
                stack.enter_context(buffers_kept(function))
        stack.enter_context(python_state_kept(*functions, *([model] if model is not None else [])))
        yield


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Context manager that restores the model's buffers and the host's random generators on exit."""
    saved = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        with preserve_rng_state():
            yield
    finally:
        with torch.no_grad():
            for module, name, buffer, value in saved:
                module._buffers[name] = buffer  # forward may have replaced it
                buffer.copy_(value)


@contextmanager
def unchanged(model: nn.Module, *functions: Any) -> Iterator[None]:
    """The same for a trial in evaluation mode.

    Inside, batch norm without running statistics passes its input through: it would mix the samples of a batch even in
    evaluation mode, which says nothing about the rest of the model.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is None]
    forwards = [norm.__dict__.get("forward") for norm in norms]
    for norm in norms:
        norm.__dict__["forward"] = _pass_through
    try:
        with state_kept(model, *functions):
            yield
    finally:
        for norm, forward in zip(norms, forwards, strict=True):
            norm.__dict__.pop("forward")
            if forward is not None:  # it was replaced before
                norm.__dict__["forward"] = forward


def _pass_through(x: Tensor) -> Tensor:
    return x
