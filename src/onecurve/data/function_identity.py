"""Tells whether a function of the user's is still the one that has made what is stored.

The hash covers the function's code, its constants, defaults and closure, and what it refers to by name: functions,
classes, modules and values of the user's own files. The code of Python and of installed libraries is not covered. Other
objects are covered as far as they can be pickled; what cannot be is listed as unseen.
"""

import copyreg
import sys
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash

_LIBRARIES = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_SIMPLE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))

_SLOTS = (MemberDescriptorType, GetSetDescriptorType)


class Identity(NamedTuple):
    """Something that has decided what is stored."""

    name: str
    """For a person."""
    hash: str
    unseen: tuple[str, ...] = ()
    """Types of objects whose changes do not show."""


def function_identity(function: Any) -> Identity:
    """Return the name and the hash of a callable."""
    hasher = _Hasher()
    hasher.add(function)
    return Identity(_name(function), hasher.result(), tuple(sorted(hasher.unseen)))


def _name(function: Any) -> str:
    inner = function.__func__ if isinstance(function, MethodType) else function
    if isinstance(inner, FunctionType):
        code = inner.__code__
        return f"{inner.__qualname__.replace('<locals>.', '')} ({Path(code.co_filename).name}:{code.co_firstlineno})"
    return getattr(inner, "__qualname__", type(inner).__qualname__)


class _Hasher:
    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128(sys.version_info[:2].__repr__().encode())  # the bytecode depends on the version
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []
        """What was seen, so that nothing else gets its id."""
        self.unseen: set[str] = set()

    def result(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        if isinstance(value, _SIMPLE):
            self._text("value", repr(value))
            return
        if id(value) in self._seen:  # what refers to itself
            self._text("again", str(self._seen[id(value)]))
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        self._add_object(value)

    def _add_object(self, value: Any) -> None:
        match value:
            case FunctionType():
                self._function(value)
            case MethodType():
                self._all("method", [value.__func__, value.__self__])
            case partial():
                self._all("partial", [value.func, value.args, value.keywords])
            case CodeType():
                self._code(value)
            case list() | tuple():
                self._all(type(value).__name__, value)
            case dict():
                self._all("dict", [part for item in value.items() for part in item])
            case set() | frozenset():
                self._all("set", sorted(value, key=repr))
            case np.ndarray() if value.dtype != object:
                self._text("array", f"{value.dtype} {value.shape}")
                self._hash.update(np.ascontiguousarray(value).tobytes())
            case torch.Tensor() if not value.is_meta:
                self._text("tensor", f"{value.dtype} {tuple(value.shape)}")
                self._hash.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            case ModuleType() | BuiltinFunctionType():
                self._text("name", value.__name__)
            case type():
                self._class(value)
            case _:
                self._object(value)

    def _function(self, function: FunctionType) -> None:
        self._text("function", f"{function.__module__}.{function.__qualname__}")
        if _is_own(function):
            self._code(function.__code__)
        self._all("defaults", [function.__defaults__, function.__kwdefaults__])
        for cell in function.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # not filled yet
                self._text("cell", "")
        self.add(getattr(function, "__wrapped__", None))
        names = sorted(_names(function.__code__)) if _is_own(function) else []
        for name in names:
            if name in function.__globals__:
                self._text("global", name)
                found = function.__globals__[name]
                self.add(found)
                if isinstance(found, ModuleType) and _is_own_file(getattr(found, "__file__", None)):
                    self._all("module", [vars(found)[each] for each in names if each in vars(found)])

    def _code(self, code: CodeType) -> None:
        self._text("code", repr((code.co_code, code.co_names, code.co_varnames, code.co_argcount)))
        self._all("constants", code.co_consts)

    def _object(self, value: Any) -> None:
        """Any other object: as pickle would take it apart."""
        self._text("object", "")
        self._class(type(value))
        if (wrapped := getattr(value, "__wrapped__", None)) is not None:
            self.add(wrapped)
            return
        try:
            reduce = copyreg.dispatch_table.get(type(value))
            parts = reduce(value) if reduce is not None else value.__reduce_ex__(2)
        except Exception:  # each type refuses in its own way
            self.unseen.add(f"{type(value).__module__}.{type(value).__qualname__}")
            return
        if isinstance(parts, tuple):
            self._all("parts", [list(part) if isinstance(part, Iterator) else part for part in parts])
        else:
            self._text("global", str(parts))

    def _class(self, kind: type) -> None:
        self._text("class", f"{kind.__module__}.{kind.__qualname__}")
        if _is_own(kind):
            for name, member in sorted(vars(kind).items()):
                is_code = isinstance(member, FunctionType | classmethod | staticmethod | property)
                if is_code or not (name.startswith("__") or isinstance(member, _SLOTS)):
                    self._text("member", name)
                    self.add(getattr(member, "__func__", getattr(member, "fget", member)))
            for base in kind.__bases__:
                self.add(base)

    def _all(self, what: str, values: Any) -> None:
        self._text(what, str(len(values)))
        for value in values:
            self.add(value)

    def _text(self, what: str, text: str) -> None:
        self._hash.update(f"{what}:{len(text)}:{text};".encode())


def _names(code: CodeType) -> set[str]:
    """Names that a function, or one inside it, may look up in its module."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


def _is_own(value: Any) -> bool:
    """True for what is defined in the user's files, rather than in Python, onecurve or an installed library."""
    module = sys.modules.get(value.__module__)
    file = value.__code__.co_filename if isinstance(value, FunctionType) else getattr(module, "__file__", None)
    return (value.__module__ or "").partition(".")[0] != __name__.partition(".")[0] and _is_own_file(file)


def _is_own_file(file: str | None) -> bool:
    return file is not None and not any(Path(file).is_relative_to(folder) for folder in _LIBRARIES)
