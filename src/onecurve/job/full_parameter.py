"""Optimizers whose update of an element depends on other elements of its parameter, for plans that shard parameters.

Such an optimizer works on what a rank holds of each parameter, and asks `parts` where that belongs. Sums over a whole
parameter are added up by `reduce`; what needs a full matrix is computed by `on_full`. On one device, a rank holds all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Slices = tuple[slice, ...]
OnFull = Callable[[Sequence[Tensor], Sequence[Tensor], Callable[[Tensor], Tensor]], list[Tensor]]
"""A function (parameters, a tensor like each, a function of a full matrix) → this rank's elements of the results."""


@dataclass(frozen=True)
class ParameterPart:
    """What a rank holds of a parameter."""

    shape: tuple[int, ...]
    """Of the full parameter."""
    boxes: tuple[tuple[Slices, Slices], ...]
    """Blocks of elements: where they are in the full parameter, and where here."""
    counts: bool
    """True if this rank adds these elements to sums over the ranks: one of those that hold them does."""


class FullParameterOptimizer(torch.optim.Optimizer):
    """Base class of Muon and Adafactor."""

    parts: Callable[[Tensor], ParameterPart]
    reduce: Callable[[Tensor], Tensor]
    on_full: OnFull

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        super().__init__(params, defaults)
        self.parts, self.reduce, self.on_full = _whole, lambda sums: sums, _on_each


def _whole(parameter: Tensor) -> ParameterPart:
    slices = tuple(slice(0, side) for side in parameter.shape)
    return ParameterPart(tuple(parameter.shape), ((slices, slices),), True)


def _on_each(_: Sequence[Tensor], values: Sequence[Tensor], compute: Callable[[Tensor], Tensor]) -> list[Tensor]:
    return [compute(value) for value in values]
