"""Learning-rate schedules: pure functions of the step, as a factor of the optimizer's own rate."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onecurve.describe.errors import OnecurveError

Shape = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class Schedule:
    """Rises linearly over `warmup` steps, then follows its shape down to `final` at the last step."""

    shape: Shape = "constant"
    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise OnecurveError(f"schedule: warmup = {self.warmup} steps; 0 or more is needed")

    def factor(self, step: int, steps: int) -> float:
        """The factor for step `step` (from 0) of `steps`."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.shape == "constant":
            return 1.0
        progress = min(1.0, (step - self.warmup) / max(1, steps - 1 - self.warmup))
        fall = progress if self.shape == "linear" else (1 - math.cos(math.pi * progress)) / 2
        return 1 - (1 - self.final) * fall


def linear_scaling(lr: float, batch: int, base: int = 256) -> float:
    """A rate found for batches of `base`, for `batch`: in proportion (SGD; Goyal et al. 2017, arXiv:1706.02677)."""
    return lr * batch / base


def sqrt_scaling(lr: float, batch: int, base: int = 256) -> float:
    """In proportion to the square root (Adam, LAMB; Krizhevsky 2014, arXiv:1404.5997)."""
    return lr * math.sqrt(batch / base)


AnySchedule = Schedule | Callable[[int, int], float]
"""A Schedule, or the user's own `factor(step, steps)`."""


def constant(warmup: int = 0) -> Schedule:
    return Schedule("constant", warmup)


def linear(warmup: int = 0, final: float = 0.0) -> Schedule:
    return Schedule("linear", warmup, final)


def cosine(warmup: int = 0, final: float = 0.0) -> Schedule:
    return Schedule("cosine", warmup, final)
