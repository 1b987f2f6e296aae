"""Finds what a forward changes, buffers and parameters, and whether that depends on the samples or on random numbers.

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
from onecurve.model.python_state import python_state_kept

_aten = torch.ops.aten
_READS_A_VALUE = (_aten._local_scalar_dense.default, _aten.equal.default)
_STATISTICS_OF_BATCH_NORM = {_aten.native_batch_norm.default: (3, 4), _aten.cudnn_batch_norm.default: (3, 4)}
"""Arguments that an operation writes into although its schema does not say so."""


def find_changed_buffers(model: nn.Module, inputs: Any, forward: Callable[[], object]) -> ChangedBuffers:
    """Return the buffers and parameters that `forward`, a call of `model` on `inputs`, changes in training mode.

    Modes that answer for the operations (fake tensors) must be entered before. The model is left changed.
    """
    before = _buffers(model)
    parameters = dict(model.named_parameters())
    storages = {name: _storage_of(parameter) for name, parameter in parameters.items()}
    modes = [(module, module.training) for module in model.modules()]
    tracer = _WriteTracer(inputs)
    model.train()
    try:
        with python_state_kept(model), tracer:
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
    now = dict(model.named_parameters())
    written = {
        name: now.get(name, parameter)
        for name, parameter in parameters.items()
        if tracer.is_written(parameter) or _storage_of(now.get(name, parameter)) != storages[name]
    }
    by_samples = tuple(name for name, parameter in written.items() if tracer.is_marked(parameter))
    return ChangedBuffers(
        normalized_parameters=tuple(name for name in by_samples if tracer.is_only_normalized(written[name])),
        parameters=tuple(name for name in written if name not in by_samples),
        data_dependent_parameters=by_samples,
        data_independent=tuple(name for name in changed if name not in dependent),
        data_dependent=tuple(dependent),
        not_floating_point=tuple(name for name, buffer in dependent.items() if not buffer.is_floating_point()),
        reads_values=tracer.has_read_marked,
    )


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
        self._written: dict[int, set[Any]] = {}  # storage → the operations that write into it
        self._alive: dict[int, object] = {}  # keeps storages alive, so that no address is used twice
        self.has_read_marked = False
        self._mark(_tensors(inputs))

    def is_written(self, tensor: Tensor) -> bool:
        return self._key(tensor) in self._written

    def is_only_normalized(self, tensor: Tensor) -> bool:
        key = self._key(tensor)
        return key is not None and self._written.get(key) == {_aten.embedding_renorm_.default}

    def is_marked(self, tensor: Tensor) -> bool:
        return self._key(tensor) in self._marked

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = operation(*arguments, **kwargs)
        is_marked = any(map(self.is_marked, _tensors((arguments, kwargs))))
        if is_marked and operation in _READS_A_VALUE:
            self.has_read_marked = True
        written = _tensors(_written_arguments(operation, arguments, kwargs))
        for key in map(self._key, written):
            if key is not None:
                self._written.setdefault(key, set()).add(operation)
        if is_marked or self.has_read_marked or torch.Tag.nondeterministic_seeded in operation.tags:
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


def _storage_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # assigned to `.data`, a parameter has another one


def _written_arguments(operation: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    written = [arguments[position] for position in _STATISTICS_OF_BATCH_NORM.get(operation, ())]
    for position, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(arguments[position] if position < len(arguments) else kwargs.get(argument.name))
    return written


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]
