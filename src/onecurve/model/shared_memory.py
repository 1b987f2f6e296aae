"""Tensors of a model that share memory although they are not the same tensor.

Such as a parameter that was tied through `.data`, a buffer or an attribute that is a view of a parameter. A write into
one of them changes the others. (A tensor that a module registers under several names is one tensor, and not meant.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError

_REGISTERED = ("_parameters", "_buffers", "_modules")
_MOST_WORK = 1_000_000
"""Places that are tried to find out whether two strided tensors overlap."""


@dataclass(frozen=True, eq=False)
class SharedMemory:
    """Two or more tensors of which each overlaps with another one of them."""

    names: tuple[str, ...]
    """Where the model keeps them, such as `head.weight` or `blocks.0.first`."""
    tensors: tuple[Tensor, ...]

    @property
    def has_parameters(self) -> bool:
        return any(isinstance(tensor, nn.Parameter) for tensor in self.tensors)

    @property
    def text(self) -> str:
        return " and ".join(map(repr, self.names))


def find_shared_memory(model: nn.Module) -> list[SharedMemory]:
    """Return the groups of tensors of the model that overlap in memory."""
    by_storage: dict[int, list[tuple[str, Tensor]]] = {}
    known: set[int] = set()
    for name, tensor in _named_tensors(model):
        if id(tensor) not in known and tensor.numel() and (storage := _storage_key(tensor)) is not None:
            known.add(id(tensor))
            by_storage.setdefault(storage, []).append((name, tensor))
    return [group for members in by_storage.values() if len(members) > 1 for group in _overlapping(members)]


def kept_whole(model: nn.Module) -> str:
    """Say why each rank must hold the parameters as the constructor made them; empty if it need not."""
    for group in find_shared_memory(model):
        if group.has_parameters:
            return f"{group.text} share memory (to tie parameters, assign the parameter itself, not its data)"
    for name, parameter in model.named_parameters():
        if type(parameter) not in (nn.Parameter, FakeTensor):
            return f"parameter {name!r} is a {type(parameter).__name__}, a class derived from nn.Parameter"
    return ""


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all parameters, buffers, and tensors in plain attributes, with their names. Parameters come first."""
    yield from model.named_parameters()
    yield from model.named_buffers()
    for prefix, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute not in _REGISTERED and isinstance(value, Tensor | list | tuple | dict):
                name = f"{prefix}.{attribute}" if prefix else attribute
                yield from ((name, leaf) for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def _storage_key(tensor: Tensor) -> int | None:
    try:
        key = int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a tensor without a storage
        return None
    return key


def _overlapping(members: Sequence[tuple[str, Tensor]]) -> list[SharedMemory]:
    """Divide tensors of one storage into groups that overlap. Slices of one tensor need not."""
    groups: list[list[tuple[str, Tensor]]] = []
    for member in members:
        touched = [group for group in groups if any(_overlap(member[1], other) for _, other in group)]
        groups = [group for group in groups if group not in touched]
        groups.append([*(each for group in touched for each in group), member])
    shared = []
    for group in groups:
        names, tensors = zip(*group, strict=True)
        if len(group) > 1:
            if len({tensor.dtype for tensor in tensors}) > 1:
                raise OnecurveError(
                    f"model: {' and '.join(map(repr, names))} share memory with different dtypes, which cannot be kept "
                    "when the model is built on a device; give each its own memory (clone())"
                )
            shared.append(SharedMemory(names, tensors))
    return shared


def _overlap(one: Tensor, other: Tensor) -> bool:
    memory = np.empty(max(_end(one), _end(other)), np.int8)  # never touched, so it takes no memory
    try:
        return bool(np.shares_memory(_in(memory, one), _in(memory, other), max_work=_MOST_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:  # strides for which an exact answer would take long
        return True


def _end(tensor: Tensor) -> int:
    """The byte of the storage behind the tensor's last one."""
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.element_size()


def _in(memory: "np.ndarray[Any, Any]", tensor: Tensor) -> "np.ndarray[Any, Any]":
    """An array with the bytes of the tensor's elements, if `memory` were its storage."""
    size = tensor.element_size()
    steps = [step * size for step in tensor.stride()]
    return np.ndarray((*tensor.shape, size), np.int8, memory, tensor.storage_offset() * size, (*steps, 1))
