"""Decisions that Python code takes by the value of a tensor, `if (mask == 0).any():`, or by a number that it draws."""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

Decision = tuple[str, bool]
"""The place in the code, "model.py:12", and what was decided."""

_MOST_FORCED = 64
"""Decisions that are answered for the code; a loop may wait for the other answer."""
_LARGEST = 1 - 2**-53
"""The largest number that `random.random()` returns."""


@dataclass
class _Watch:
    """The context of one call of `decisions`."""

    forced: bool | None
    found: set[Decision] = field(default_factory=set)
    thread: int = field(default_factory=threading.get_ident)
    left: int = _MOST_FORCED

    def decide(self, tensor: Tensor, value: Callable[[Tensor], Any]) -> bool:
        if self.forced is not None and self.left > 0:
            self.left -= 1
            return self.forced
        return bool(value(tensor))


_watches: list[_Watch] = []
"""The contexts that are entered, the innermost last."""


@contextmanager
def decisions(forced: bool | None = None) -> Iterator[set[Decision]]:
    """Context manager that yields the set of the decisions that the calling thread takes inside.

    `forced`: the answer that the code gets instead of the value of the tensor.
    """
    _install()
    watch = _Watch(forced)
    _watches.append(watch)
    try:
        yield watch.found
    finally:
        _watches.remove(watch)


@cache
def _install() -> None:
    """Replace the methods of Tensor that return its value, once: each change of a class makes Python forget what it
    has cached about it, and after a thousand changes it caches nothing any more."""
    to_bool, to_item = Tensor.__bool__, Tensor.item

    def decide(tensor: Tensor, frame: Any, value: Callable[[Tensor], Any]) -> Any:
        watch = _watches[-1] if _watches else None
        if watch is None or watch.thread != threading.get_ident():
            return value(tensor)
        decided = watch.decide(tensor, value)
        watch.found.add((f"{frame.f_code.co_filename}:{frame.f_lineno}", decided))
        return decided

    def as_bool(tensor: Tensor) -> Any:
        return decide(tensor, sys._getframe(1), to_bool)

    def as_item(tensor: Tensor) -> Any:
        return decide(tensor, sys._getframe(1), to_item) if tensor.dtype == torch.bool else to_item(tensor)

    replaced: Any = Tensor
    replaced.__bool__, replaced.item = as_bool, as_item


@contextmanager
def forced_draws(largest: bool) -> Iterator[None]:
    """Context manager in which Python and NumPy draw the smallest or the largest number of their range."""
    value = _LARGEST if largest else 0.0

    def uniform(low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        drawn = low + value * (high - low)
        return drawn if size is None else np.full(size, drawn)

    forced: dict[Any, dict[str, Any]] = {
        random: {"random": lambda: value, "uniform": lambda a, b: a + value * (b - a)},
        np.random: {
            "rand": lambda *shape: uniform(size=shape or None),
            "random": lambda size=None: uniform(size=size),
            "random_sample": lambda size=None: uniform(size=size),
            "uniform": uniform,
        },
    }
    before = {library: {name: getattr(library, name) for name in names} for library, names in forced.items()}
    _set(forced)
    try:
        yield
    finally:
        _set(before)


def _set(functions: dict[Any, dict[str, Any]]) -> None:
    for library, named in functions.items():
        for name, function in named.items():
            setattr(library, name, function)
