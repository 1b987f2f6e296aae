"""Finds the buffers that a forward changes, and whether the change depends on the samples or on random numbers.

Every storage is marked that was computed from the inputs or from a random number; an operation passes the mark of its
arguments on to its results and to the tensors it writes into. Once the model has read a marked value (`item()`, a
condition), every later result counts as computed from it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from onecurve.describe.changed_buffers import ChangedBuffers

_aten = torch.ops.aten
_READS_A_VALUE = (_aten._local_scalar_dense.default, _aten.equal.default)
_STATISTICS_OF_BATCH_NORM = {_aten.native_batch_norm.default: (3, 4), _aten.cudnn_batch_norm.default: (3, 4)}
"""Arguments that an operation writes into although its schema does not say so."""


def find_changed_buffers(model: nn.Module, inputs: Any, forward: Callable[[], object]) -> ChangedBuffers:
    """Return the buffers that `forward`, a call of `model` on `inputs`, changes in training mode.

    Modes that answer for the operations (fake tensors) must be entered before. The model is left changed.
    """
    before = _buffers(model)
    modes = [(module, module.training) for module in model.modules()]
    tracer = _WriteTracer(inputs)
    model.train()
    try:
        with tracer:
            forward()
    finally:
        for module, training in modes:
            module.training = training
    changed = {
        name: buffer
        for name, buffer in _buffers(model).items()
        if name in before and (buffer is not before[name] or tracer.is_written(buffer))
    }
    dependent = {name: buffer for name, buffer in changed.items() if tracer.is_marked(buffer)}
    return ChangedBuffers(
        data_independent=tuple(name for name in changed if name not in dependent),
        data_dependent=tuple(dependent),
        not_floating_point=tuple(name for name, buffer in dependent.items() if not buffer.is_floating_point()),
    )


def has_unknown_buffers(model: nn.Module) -> bool:
    """True if the model has buffers of which it is not known whether forward changes them: any besides batch norm's."""
    return bool(_buffers(model))


def _buffers(model: nn.Module) -> dict[str, Tensor]:
    """All buffers by name, without the running statistics of batch norm, which have a treatment of their own."""
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if not isinstance(model.get_submodule(name.rpartition(".")[0]), _BatchNorm)
    }


class _WriteTracer(TorchDispatchMode):
    """Marks what is computed from the inputs or from random numbers, and remembers which storages are written."""

    def __init__(self, inputs: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._marked: set[int] = set()
        self._written: set[int] = set()
        self._alive: dict[int, object] = {}  # keeps storages alive, so that no address is used twice
        self._has_read_marked = False
        self._mark(_tensors(inputs))

    def is_written(self, tensor: Tensor) -> bool:
        return self._key(tensor) in self._written

    def is_marked(self, tensor: Tensor) -> bool:
        return self._key(tensor) in self._marked

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = operation(*arguments, **kwargs)
        is_marked = any(map(self.is_marked, _tensors((arguments, kwargs))))
        if is_marked and operation in _READS_A_VALUE:
            self._has_read_marked = True
        written = _tensors(_written_arguments(operation, arguments, kwargs))
        self._written.update(key for key in map(self._key, written) if key is not None)
        if is_marked or self._has_read_marked or torch.Tag.nondeterministic_seeded in operation.tags:
            self._mark([*_tensors(result), *written])
        return result

    def _mark(self, tensors: Iterable[Tensor]) -> None:
        self._marked.update(key for key in map(self._key, tensors) if key is not None)

    def _key(self, tensor: Tensor) -> int | None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # a tensor without a storage
            return None
        key: int = storage._cdata
        self._alive[key] = storage
        return key


def _written_arguments(operation: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    written = [arguments[position] for position in _STATISTICS_OF_BATCH_NORM.get(operation, ())]
    for position, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(arguments[position] if position < len(arguments) else kwargs.get(argument.name))
    return written


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]
