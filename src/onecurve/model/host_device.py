"""Keeps a constructor on the host, whatever device it names."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

_KEPT = ("cpu", "meta")
_MOVES = (Tensor.cuda, Tensor.xpu)
"""Methods that are named after the device that they move a tensor to."""


class HostDevice(TorchFunctionMode):
    """While it is active, what is created on an accelerator or moved there is created, or stays, in host memory.

    Weights then depend neither on the device nor on how many of them there are, and a model that names a device can be
    planned on a host without one. The device `meta` stays what it is.
    """

    def __torch_function__(
        self, function: Any, _: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function in _MOVES:
            return arguments[0]
        if kwargs.get("device") is not None:
            kwargs["device"] = _on_host(kwargs["device"])
        elif function in _device_constructors() and not any(_is_meta(each) for each in arguments):
            kwargs["device"] = "cpu"  # else a default device would be added
        if function is Tensor.to and len(arguments) > 1 and isinstance(arguments[1], str | int):
            arguments = (arguments[0], _on_host(arguments[1]), *arguments[2:])
        arguments = tuple(_on_host(each) if isinstance(each, torch.device) else each for each in arguments)
        return function(*arguments, **kwargs)


def _is_meta(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.is_meta


def _on_host(device: torch.device | str | int) -> torch.device:
    is_kept = not isinstance(device, int) and torch.device(device).type in _KEPT
    return torch.device(device) if is_kept else torch.device("cpu")
