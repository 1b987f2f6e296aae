"""Decisions that Python code takes by the value of a tensor, `if (mask == 0).any():`, or by a number that it draws."""

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def decisions(forced: bool | None = None) -> Iterator[set[Decision]]:
    """Context manager that yields the set of the decisions that the calling thread takes inside.

    `forced`: the answer that the code gets instead of the value of the tensor.
    """
    found: set[Decision] = set()
    thread, left = threading.get_ident(), _MOST_FORCED
    to_bool, to_item = Tensor.__bool__, Tensor.item

    def decide(tensor: Tensor, frame: Any, value: Any) -> bool:
        nonlocal left
        if threading.get_ident() != thread:
            return bool(value(tensor))
        if forced is not None and left > 0:
            left -= 1
            decided = forced
        else:
            decided = bool(value(tensor))
        found.add((f"{frame.f_code.co_filename}:{frame.f_lineno}", decided))
        return decided

    def as_bool(tensor: Tensor) -> bool:
        return decide(tensor, sys._getframe(1), to_bool)

    def as_item(tensor: Tensor) -> Any:
        return decide(tensor, sys._getframe(1), to_item) if tensor.dtype == torch.bool else to_item(tensor)

    before = {name: vars(Tensor)[name] for name in ("__bool__", "item") if name in vars(Tensor)}
    replaced: Any = Tensor
    replaced.__bool__, replaced.item = as_bool, as_item
    try:
        yield found
    finally:
        del replaced.__bool__, replaced.item  # they are inherited
        for name, value in before.items():
            setattr(Tensor, name, value)


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
