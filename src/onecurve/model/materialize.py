"""Makes a recorded module real, as much of it as is asked for, keeping ties, buffers and stray tensors."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from onecurve.model.recorder import InitRecorder


class Materializer:
    """Turns the fake tensors of modules into real ones on a device, each tensor once however often it is met."""

    def __init__(
        self,
        recorder: InitRecorder | None,
        device: torch.device,
        dtype: torch.dtype | None = None,
        layout: torch.memory_format = torch.preserve_format,
    ) -> None:
        """`tape` is None for a module that is real already; `dtype` None leaves floating point as it is; a `layout` of
        channels_last is for tensors of four dimensions."""
        self._recorder = recorder
        self._device = device
        self._dtype = dtype
        self._layout = layout
        self._made: dict[int, weakref.ref[Tensor]] = {}  # weak: a block's whole tensors are freed once it is sharded
        self._kept_alive: list[Tensor] = []  # the fake originals, so that no id is used twice

    def materialize(self, module: nn.Module) -> None:
        """In place, for the module and all below it."""
        for each in module.modules():
            for name, parameter in each._parameters.items():
                if parameter is not None:
                    each._parameters[name] = self._materialized(parameter)  # type: ignore[assignment]
            for name, buffer in each._buffers.items():
                if buffer is not None:
                    each._buffers[name] = self._materialized(buffer)
            for name, value in each.__dict__.items():
                if name not in ("_parameters", "_buffers", "_modules"):
                    each.__dict__[name] = _map_tensors(value, self._materialized)

    def _materialized(self, tensor: Tensor) -> Tensor:
        if isinstance(tensor, DTensor) or self._is_as_wanted(tensor):
            return tensor
        made = self._made.get(id(tensor), lambda: None)()
        if made is None:
            made = self._make(tensor)
            self._made[id(tensor)] = weakref.ref(made)
            self._kept_alive.append(tensor)
        return made

    def _is_as_wanted(self, tensor: Tensor) -> bool:
        if isinstance(tensor, FakeTensor):
            return False
        in_type = self._wanted_dtype(tensor) in (None, tensor.dtype)
        laid_out = not self._lays_out(tensor) or tensor.is_contiguous(memory_format=self._layout)
        return tensor.device == self._device and in_type and laid_out

    def _lays_out(self, tensor: Tensor) -> bool:
        return self._layout is torch.contiguous_format or (self._layout is torch.channels_last and tensor.dim() == 4)

    def _wanted_dtype(self, tensor: Tensor) -> torch.dtype | None:
        if tensor.is_complex() and self._dtype is torch.float64:
            return torch.complex128
        return self._dtype if tensor.is_floating_point() else None

    def _make(self, tensor: Tensor) -> Tensor:
        value = self._recorder.value(tensor) if self._recorder is not None else tensor.detach()
        value = value.to(self._device, self._wanted_dtype(value))
        if self._lays_out(value):
            value = value.contiguous(memory_format=self._layout)
        if isinstance(tensor, nn.Parameter):
            real = nn.Parameter(value, requires_grad=tensor.requires_grad)
            real.__dict__.update({k: v for k, v in tensor.__dict__.items() if not k.startswith("_") and k not in _FAKE})
            return real
        return value


_FAKE = frozenset(("fake_device", "fake_mode", "constant", "real_tensor", "nonzero_memo", "item_memo", "unique_memo"))
"""What a fake tensor's own bookkeeping adds; other attributes are the user's marks and are kept."""


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A module's stray tensors: plain attributes, also in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple | dict) and any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value)):
        return pytree.tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, value)
    return value
