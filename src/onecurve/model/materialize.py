"""Turn the fake tensors of modules into real ones; preserve ties, buffers and tensors in plain attributes."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from onecurve.model.fake_mode import copy_user_attributes
from onecurve.model.recorder import InitRecorder


class Materializer:
    """Replaces the fake tensors of modules by real ones on a device. A tied tensor is created once."""

    def __init__(
        self,
        recorder: InitRecorder | None,
        device: torch.device,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.preserve_format,
        *,
        is_filled_later: bool = False,
    ) -> None:
        """`recorder`: None for a module that is already real. `dtype`: for floating-point tensors; None leaves theirs.
        `memory_format`: channels_last applies to 4-dimensional tensors only. `is_filled_later`: parameters and
        persistent buffers get no initial values."""
        self._recorder = recorder
        self._device = device
        self._dtype = dtype
        self._memory_format = memory_format
        self._is_filled_later = is_filled_later and recorder is not None
        # Weak, so that the full tensors of a block are freed once it is sharded.
        self._real_tensors: dict[int, weakref.ref[Tensor]] = {}
        self._originals: list[Tensor] = []  # the fake tensors, held so that no id is reused

    def materialize(self, module: nn.Module) -> None:
        """Make all tensors of the module and of its submodules real, in place."""
        with torch._C.DisableTorchFunction():  # a mode that changes the model's functions must not change its weights
            for submodule in module.modules():
                self._materialize(submodule)

    def _materialize(self, module: nn.Module) -> None:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = self._real_tensor(parameter, self._is_filled_later)  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                is_saved = name not in module._non_persistent_buffers_set
                module._buffers[name] = self._real_tensor(buffer, self._is_filled_later and is_saved)
        for name, value in module.__dict__.items():
            if name not in ("_parameters", "_buffers", "_modules"):
                module.__dict__[name] = _map_tensors(value, self._real_tensor)

    def _real_tensor(self, tensor: Tensor, is_filled_later: bool = False) -> Tensor:
        if isinstance(tensor, DTensor) or self._is_finished(tensor):
            return tensor
        real = self._real_tensors.get(id(tensor), lambda: None)()
        if real is None:
            real = self._create(tensor, is_filled_later)
            self._real_tensors[id(tensor)] = weakref.ref(real)
            self._originals.append(tensor)
        return real

    def _is_finished(self, tensor: Tensor) -> bool:
        """True if the tensor is real and has the requested device, dtype and memory format."""
        if isinstance(tensor, FakeTensor):
            return False
        dtype_fits = self._target_dtype(tensor) in (None, tensor.dtype)
        format_fits = not self._format_applies(tensor) or tensor.is_contiguous(memory_format=self._memory_format)
        return tensor.device == self._device and dtype_fits and format_fits

    def _format_applies(self, tensor: Tensor) -> bool:
        """True if the requested memory format applies to this tensor."""
        return self._memory_format is torch.contiguous_format or (
            self._memory_format is torch.channels_last and tensor.dim() == 4
        )

    def _target_dtype(self, tensor: Tensor) -> torch.dtype | None:
        if tensor.is_complex() and self._dtype is torch.float64:
            return torch.complex128
        return self._dtype if tensor.is_floating_point() else None

    def _create(self, tensor: Tensor, is_filled_later: bool) -> Tensor:
        if is_filled_later:
            value = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        else:
            value = self._recorder.value(tensor) if self._recorder is not None else tensor.detach()
        if (
            value.is_meta and self._device.type != "meta"
        ):  # an attribute that the constructor itself left without a value
            return value
        value = value.to(self._device, self._target_dtype(value))
        if self._format_applies(value):
            value = value.contiguous(memory_format=self._memory_format)
        if isinstance(tensor, nn.Parameter):
            parameter = nn.Parameter(value, requires_grad=tensor.requires_grad)
            copy_user_attributes(tensor, parameter)
            return parameter
        return value


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to an attribute that is a tensor, or a list, tuple or dict that contains tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple | dict) and any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value)):
        return pytree.tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, value)
    return value
