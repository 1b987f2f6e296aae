"""Restores the Python values that a forward or a loss changes in a trial: counters, lists, caches, random generators.

They are found from the modules and functions that a trial runs: in attributes of objects and of their classes, in
containers, in closures, and in the global variables that the code names. What belongs to Python, torch or
another installed package is left alone.
"""

import logging
import random
import sys
import sysconfig
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from types import BuiltinFunctionType, CellType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_log = logging.getLogger(__name__)

_DICTS, _LISTS = (dict, OrderedDict, defaultdict, Counter), (list, deque)
"""Containers. Classes derived from them may do more when they are read, such as to import what they name."""
_OF_MODULES = ("_parameters", "_buffers", "_modules", "training")
"""Attributes of a module that engines exchange, of which only what a trial has added is removed; and the mode, which is
set before each forward."""
_MOST_OBJECTS = 100_000
_MOST_ELEMENTS = 1_000_000
_MOST_BYTES = 2**26
"""Larger tensors in plain attributes are not copied."""
_MISSING = object()
_PYTHON = Path(sysconfig.get_path("stdlib"))
_Cached = type(cache(lambda: None))
"""The class of functions with a cache of functools."""


@contextmanager
def python_state_kept(*roots: Any) -> Iterator[None]:
    """Context manager that restores the Python values that `roots`, modules and functions, can reach."""
    state = PythonState(roots)
    try:
        yield
    finally:
        state.restore()


class PythonState:
    """The Python values that some modules and functions can reach, at one moment."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self._seen: dict[int, Any] = {}  # referenced, so that no id is reused
        self._undo: list[Callable[[], None]] = []
        for root in roots:
            self._visit(root)

    def restore(self) -> None:
        """Restore the values that have changed."""
        for undo in self._undo:
            undo()

    def _visit(self, root: Any) -> None:
        """Remember the values of an object and of what it refers to."""
        pending = [root]
        while pending and len(self._seen) < _MOST_OBJECTS:
            value = pending.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                pending.extend(self._remember(value))

    def _remember(self, value: Any) -> list[Any]:
        """Remember one object; return those that it refers to."""
        match value:
            case nn.Module():
                return [*self._remember_module(value), type(value)]
            case Tensor():
                return self._remember_tensor(value)
            case dict() if type(value) in _DICTS and _is_restored(value, value.values()):
                self._undo.append(partial(_restore_dict, value, dict(value)))
                return [*value.values()]
            case list() | deque() if type(value) in _LISTS and _is_restored(value, value):
                self._undo.append(partial(_restore_sequence, value, [*value]))
                return [*value]
            case set() if type(value) is set and len(value) <= _MOST_ELEMENTS:
                self._undo.append(partial(_restore_set, value, {*value}))
                return []
            case tuple() | frozenset() if type(value) in (tuple, frozenset):
                return [*value]
            case FunctionType():
                return self._remember_function(value)
            case MethodType():
                return [value.__self__, value.__func__]
            case partial():
                return [value.func, *value.args, *value.keywords.values()]
            case type():
                return self._remember_class(value)
        return self._remember_object(value)

    def _remember_module(self, module: nn.Module) -> list[Any]:
        attributes = {name: value for name, value in vars(module).items() if name not in _OF_MODULES}
        self._undo.append(partial(_restore_attributes, vars(module), attributes))
        for entries in (module._parameters, module._buffers):
            self._undo.append(partial(_remove_added, entries, {*entries}))
        self._undo.append(partial(_restore_dict, module._modules, dict(module._modules)))
        return [*attributes.values(), *module._modules.values()]

    def _remember_tensor(self, tensor: Tensor) -> list[Any]:
        if type(tensor) is Tensor and not tensor.is_meta and tensor.nbytes <= _MOST_BYTES:
            self._undo.append(partial(_restore_tensor, tensor, tensor._version, tensor.detach().clone()))
        return []

    def _remember_function(self, function: FunctionType) -> list[Any]:
        if _is_foreign(function.__module__):
            return []
        found = []
        for cell in function.__closure__ or ():
            content = _content(cell)
            self._undo.append(partial(_restore_cell, cell, content))
            found.append(content)
        names = {name for code in _codes(function) for name in code.co_names if name in function.__globals__}
        of_code = {name: function.__globals__[name] for name in names}
        self._undo.append(partial(_restore_names, function.__globals__, of_code))
        return [*found, *of_code.values(), *(function.__defaults__ or ())]

    def _remember_class(self, kind: type) -> list[Any]:
        found: list[Any] = []
        for each in kind.__mro__:
            if _is_foreign(each.__module__):
                continue
            data = {name: value for name, value in vars(each).items() if not name.startswith("__")}
            self._undo.append(partial(_restore_class, each, data))
            found += data.values()
        return found

    def _remember_object(self, value: Any) -> list[Any]:
        if isinstance(value, _Cached):
            self._undo.append(partial(_restore_cache, value, value.cache_info().currsize))
            return [value.__wrapped__]
        if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
            self._undo.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, np.random.Generator):
            self._undo.append(partial(setattr, value.bit_generator, "state", value.bit_generator.state))
        elif isinstance(value, torch.Generator):
            self._undo.append(partial(_restore_generator, value, value.get_state()))
        elif isinstance(value, np.ndarray) and value.nbytes <= _MOST_BYTES:
            self._undo.append(partial(_restore_array, value, value.copy()))
        elif isinstance(value, GeneratorType):
            self._undo.append(partial(_warn_of_generator, value, value.gi_frame and value.gi_frame.f_lasti))
        elif isinstance(value, ModuleType | BuiltinFunctionType) or _is_foreign(type(value).__module__):
            return []
        elif isinstance(attributes := getattr(value, "__dict__", None), dict):
            self._undo.append(partial(_restore_attributes, attributes, dict(attributes)))
            return [*attributes.values(), type(value)]
        return []


def _is_restored(container: Sized, values: Iterable[Any]) -> bool:
    """False for large containers, and for those of parameters, such as in recurrent layers: engines exchange them."""
    return len(container) <= _MOST_ELEMENTS and not any(isinstance(value, nn.Parameter) for value in values)


@cache
def _is_foreign(module: str | None) -> bool:
    """True for a module of Python, of onecurve or of an installed package: their globals and objects are left alone."""
    package = (module or "builtins").partition(".")[0]
    file = getattr(sys.modules.get(package), "__file__", None)
    if package == "onecurve" or file is None:
        return package == "onecurve" or package in sys.stdlib_module_names
    if package in sys.stdlib_module_names:  # a user's script may have such a name: code.py, profile.py
        return Path(file).is_relative_to(_PYTHON)
    return any(name in file for name in ("site-packages", "dist-packages"))


def _codes(function: FunctionType) -> Iterator[Any]:
    """The code of a function and of those that are defined in it."""
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        yield code
        pending += [constant for constant in code.co_consts if hasattr(constant, "co_names")]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that is not set yet
        return _MISSING


def _restore_cell(cell: CellType, before: Any) -> None:
    if _content(cell) is not before and before is not _MISSING:
        cell.cell_contents = before


def _restore_dict(entries: dict[Any, Any], before: Mapping[Any, Any]) -> None:
    if len(entries) != len(before) or any(entries.get(key, _MISSING) is not value for key, value in before.items()):
        entries.clear()
        entries.update(before)


def _restore_attributes(attributes: dict[str, Any], before: Mapping[str, Any]) -> None:
    for name in [name for name in attributes if name not in before and name not in _OF_MODULES]:
        del attributes[name]
    _restore_names(attributes, before)


def _restore_names(variables: dict[str, Any], before: Mapping[str, Any]) -> None:
    variables.update({name: value for name, value in before.items() if variables.get(name, _MISSING) is not value})


def _restore_class(kind: type, before: Mapping[str, Any]) -> None:
    for name in [name for name in vars(kind) if name not in before and not name.startswith("__")]:
        delattr(kind, name)
    for name, value in before.items():
        if vars(kind).get(name, _MISSING) is not value:
            setattr(kind, name, value)


def _restore_sequence(sequence: Any, before: list[Any]) -> None:
    if len(sequence) != len(before) or any(one is not other for one, other in zip(sequence, before, strict=True)):
        sequence.clear()
        sequence.extend(before)


def _restore_set(values: set[Any], before: set[Any]) -> None:
    if values != before:
        values.clear()
        values.update(before)


def _remove_added(entries: dict[str, Any], before: set[str]) -> None:
    for name in [name for name in entries if name not in before]:
        del entries[name]


def _restore_tensor(tensor: Tensor, version: int, before: Tensor) -> None:
    if tensor._version != version:
        with torch.no_grad():
            tensor.data.copy_(before)


def _restore_cache(function: Any, size: int) -> None:
    if function.cache_info().currsize != size:  # what a trial has left in it may be of a fake tensor
        function.cache_clear()


def _restore_generator(generator: torch.Generator, before: Tensor) -> None:
    generator.set_state(before)


def _restore_array(array: "np.ndarray[Any, Any]", before: "np.ndarray[Any, Any]") -> None:
    if array.flags.writeable and array.tobytes() != before.tobytes():
        array[...] = before


def _warn_of_generator(generator: Any, position: int | None) -> None:
    if (generator.gi_frame and generator.gi_frame.f_lasti) != position:
        _log.warning(
            "a trial before training has advanced the generator %s, which cannot be restored: training begins with a "
            "later value",
            generator.__qualname__,
        )
