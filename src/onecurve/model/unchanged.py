"""Runs a model for a trial without a trace: its buffers and random generators are afterwards what they were before."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from onecurve.device.rng import preserve_rng_state


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Context manager that restores the buffers of the model and the host's random generators on exit.

    Inside, batch norm without running statistics passes its input through: it would mix the samples of a batch even in
    evaluation mode, which says nothing about the rest of the model.
    """
    saved = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is None]
    forwards = [norm.__dict__.get("forward") for norm in norms]
    for norm in norms:
        norm.__dict__["forward"] = _pass_through
    try:
        with preserve_rng_state():
            yield
    finally:
        for norm, forward in zip(norms, forwards, strict=True):
            norm.__dict__.pop("forward")
            if forward is not None:  # it was replaced before
                norm.__dict__["forward"] = forward
        with torch.no_grad():
            for module, name, buffer, value in saved:
                module._buffers[name] = buffer  # forward may have replaced it
                buffer.copy_(value)


def _pass_through(x: Tensor) -> Tensor:
    return x
