"""Tensors that a constructor reads from files, recorded as constants: each rank later reads only those that it needs.

This covers safetensors (`safe_open`, and with it `load_file` and Hugging Face's `from_pretrained`) and `torch.load`.
The files stay memory-mapped, so a constructor may delete them once it is done.
"""

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import safetensors
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

RecordConstant = Callable[[Tensor], Tensor]
"""Records a tensor of a memory-mapped file; returns a fake tensor in its place."""


@contextmanager
def recorded_weight_files(record: RecordConstant) -> Iterator[None]:
    """While active, safetensors and torch.load return fake tensors, and the tensors in the files are recorded."""
    safe_open, load = safetensors.safe_open, torch.load

    def recorded_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        if framework not in ("pt", "torch", "pytorch"):
            return safe_open(filename, framework, device, **options)
        # Without the options: another backend than the default one would read the tensors at once.
        return _RecordedFile(safe_open(filename, framework), device, record)

    def recorded_load(*arguments: Any, **options: Any) -> Any:
        with _disable_current_modes():
            loaded = _load_mapped(load, *arguments, **options)
        return _map_tensors(loaded, record)

    # Libraries import safe_open by name, so it is replaced wherever it was imported to.
    importers = [module for module in [*sys.modules.values()] if _global(module, "safe_open") is safe_open]
    try:
        for module in importers:
            module.safe_open = recorded_open  # type: ignore[attr-defined]
        torch.load = recorded_load
        yield
    finally:
        torch.load = load
        for module in [*sys.modules.values()]:  # also those that were imported in the meantime
            if _global(module, "safe_open") is recorded_open:
                module.safe_open = safe_open  # type: ignore[attr-defined]


def _global(module: object, name: str) -> Any:
    """A global variable of a module. getattr would import what a lazy module has not imported yet."""
    return getattr(module, "__dict__", {}).get(name)


class _RecordedFile:
    """An open safetensors file whose tensors are fake."""

    def __init__(self, file: Any, device: Any, record: RecordConstant) -> None:
        self._file, self._device, self._record = file, device, record

    def __enter__(self) -> "_RecordedFile":
        return self

    def __exit__(self, *_: object) -> None:
        """The file stays open for the tensors that were recorded."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def get_tensor(self, name: str) -> Tensor:
        with _disable_current_modes():
            stored = self._file.get_tensor(name)
        return self._record(stored).to(self._device)

    def get_tensors(self) -> dict[str, Tensor]:
        return {name: self.get_tensor(name) for name in self._file.keys()}  # noqa: SIM118

    def get_slice(self, name: str) -> "_RecordedSlice":
        return _RecordedSlice(self, name, self._file.get_slice(name))


class _RecordedSlice:
    """A tensor of a safetensors file that is fake once it is indexed."""

    def __init__(self, file: _RecordedFile, name: str, stored: Any) -> None:
        self._file, self._name, self._stored = file, name, stored

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stored, name)

    def __getitem__(self, index: Any) -> Tensor:
        return self._file.get_tensor(self._name)[index]


def _load_mapped(load: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call torch.load, with the file memory-mapped if it allows that."""
    file = arguments[0] if arguments else options.get("f")
    if isinstance(file, str | os.PathLike) and "mmap" not in options:
        try:
            return load(*arguments, mmap=True, **options)
        except RuntimeError:  # the file has torch's format of before version 1.6
            pass
    return load(*arguments, **options)


def _map_tensors(loaded: Any, change: Callable[[Tensor], Tensor]) -> Any:
    mapped = pytree.tree_map_only(Tensor, change, loaded)
    if isinstance(loaded, OrderedDict) and hasattr(loaded, "_metadata"):  # the versions in a state_dict
        mapped._metadata = loaded._metadata
    return mapped
