"""Turn the fake tensors of modules into real ones; preserve ties, buffers and tensors in plain attributes."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from onecurve.device.gradient_hooks import GradientHooks, copy_gradient_hooks
from onecurve.model.fake_mode import user_attributes
from onecurve.model.recorder import InitRecorder, memory_of
from onecurve.model.shared_memory import SharedMemory, find_shared_memory


class Materializer:
    """Turns the fake tensors of modules into real ones on a device."""

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
        self._shared: dict[int, SharedMemory] = {}
        self._memory: dict[SharedMemory, Tensor] = {}
        self._conversions: dict[int, tuple[Tensor, Tensor]] = {}
        """The id of a real tensor → the tensor itself, so that its id is not used again, and what took its place."""

    def materialize(self, module: nn.Module) -> None:
        """Make all tensors of the module and its submodules real, in place. Those that overlap in memory still do."""
        self._shared |= {id(tensor): group for group in find_shared_memory(module) for tensor in group.tensors}
        with torch._C.DisableTorchFunction():  # a mode that changes the model's functions must not change its weights
            for submodule in module.modules():
                self._materialize(submodule)

    def materialize_held_by(self, hooks: Iterable[GradientHooks]) -> None:
        """Make the tensors real that gradient hooks hold, such as masks."""
        for of_parameter in hooks:
            for hook in (*of_parameter.of_gradient.values(), *of_parameter.after_accumulation.values()):
                for held in _tensors_held_by(hook):
                    if isinstance(held, FakeTensor):
                        self._real_tensor(held)

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
        """Make a tensor real. It stays the same object, so that whatever refers to it has the real one."""
        if isinstance(tensor, DTensor) or self._is_finished(tensor):
            return tensor
        if not isinstance(tensor, FakeTensor):
            return self._converted(tensor, is_filled_later)
        value = self._value(tensor, is_filled_later)
        is_parameter = isinstance(tensor, nn.Parameter)
        _become(tensor, nn.Parameter(value, tensor.requires_grad) if is_parameter else value)
        self._convert_attributes(tensor)
        return tensor

    def _converted(self, tensor: Tensor, is_filled_later: bool) -> Tensor:
        """Convert a real tensor, as nn.Module.to() does it: a parameter stays the same object, another tensor does not,
        because it may be a constant that other code of the user's also reads."""
        if id(tensor) in self._conversions:
            return self._conversions[id(tensor)][1]
        converted = value = self._value(tensor, is_filled_later)
        if isinstance(tensor, nn.Parameter) and self._recorder is None:
            tensor.data, converted = value, tensor
        elif isinstance(tensor, nn.Parameter):  # built outside of the constructor
            converted = nn.Parameter(value, requires_grad=tensor.requires_grad)
        if converted is not tensor:
            self._conversions[id(tensor)] = tensor, converted
            converted.__dict__.update(user_attributes(tensor))
        self._convert_attributes(converted)
        return converted

    def _convert_attributes(self, tensor: Tensor) -> None:
        """Convert the tensors among the attributes of a tensor."""
        for name, attribute in user_attributes(tensor).items():
            tensor.__dict__[name] = _map_tensors(attribute, self._real_tensor)

    def _is_finished(self, tensor: Tensor) -> bool:
        """True if the tensor is real and has the requested device, dtype and memory format."""
        if isinstance(tensor, FakeTensor):
            return False
        dtype_fits = self._target_dtype(tensor) in (None, tensor.dtype)
        format_fits = not self._format_applies(tensor) or tensor.is_contiguous(memory_format=self._memory_format)
        format_fits |= id(tensor) in self._shared  # these keep their places in their common memory
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

    def _value(self, tensor: Tensor, is_filled_later: bool) -> Tensor:
        """The tensor's value, on the device and in the dtype and memory format that are requested."""
        if (group := self._shared.get(id(tensor))) is not None:
            memory = self._shared_memory_of(group)
            return memory.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
        if is_filled_later:
            value = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        else:
            value = self._recorder.value(tensor) if self._recorder is not None else tensor.detach()
        if value.is_meta and self._device.type != "meta":  # an attribute that the constructor itself left without one
            return value
        value = value.to(self._device, self._target_dtype(value))
        if self._format_applies(value):
            value = value.contiguous(memory_format=self._memory_format)
        return value

    def _shared_memory_of(self, group: SharedMemory) -> Tensor:
        """The memory of tensors that overlap, as a tensor of one dimension. It is made once."""
        if group not in self._memory:
            first = group.tensors[0]
            memory = self._recorder.memory(first) if self._recorder is not None else memory_of(first)
            self._memory[group] = memory.to(self._device, self._target_dtype(first))
        return self._memory[group]


def _tensors_held_by(function: Any) -> Iterator[Tensor]:
    """The tensors in a function's closure, defaults and bound arguments."""
    if isinstance(function, partial):
        held = [function.func, *function.args, *function.keywords.values()]
    else:
        function = getattr(function, "__func__", function)
        cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if _is_filled(cell)]
        held = [*cells, *(getattr(function, "__defaults__", None) or ())]
    yield from (leaf for leaf in pytree.tree_leaves(held) if isinstance(leaf, Tensor))


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _become(fake: Tensor, real: Tensor) -> None:
    """Turn a fake tensor into the real one, with the attributes and hooks that the user set on it."""
    real.__dict__.update(user_attributes(fake))
    copy_gradient_hooks(fake, real)
    fake.__class__, real.__class__ = real.__class__, fake.__class__
    fake.__dict__, real.__dict__ = real.__dict__, fake.__dict__
    torch._C._swap_tensor_impl(fake, real)


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Apply `change` to an attribute that is a tensor, or a list, tuple or dict that contains tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple | dict) and any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value)):
        return pytree.tree_map(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, value)
    return value
