"""Learning-rate schedules: pure functions of the step that return a factor for the optimizer's learning rate."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onecurve.describe.errors import OnecurveError

Shape = Literal["constant", "linear", "cosine"]
Warmup = int | float | str
"""Steps, a fraction of all steps, or epochs as text: `"2 epochs"`."""


@dataclass(frozen=True)
class Schedule:
    """A linear warmup to a factor of 1, then a constant factor of 1 or a decay to `final` at the last step.

    Args:
        shape: `"constant"`, `"linear"` or `"cosine"`. Default: `"constant"`.
        warmup: Number of warmup steps; a fraction of all steps (`0.03`); or epochs (`"2 epochs"`). Default: 0.
        final: Factor at the last step; a constant schedule ignores it. Default: 0.
    """

    shape: Shape = "constant"
    warmup: Warmup = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.warmup, str):
            if self.warmup_epochs is None:
                raise OnecurveError(f"schedule: warmup must be for example '2 epochs', got {self.warmup!r}")
        elif isinstance(self.warmup, bool) or not self.warmup >= 0:
            raise OnecurveError(f"schedule: warmup must be at least 0 steps, got {self.warmup}")
        elif isinstance(self.warmup, float) and not (self.warmup < 1 or self.warmup.is_integer()):
            raise OnecurveError(
                f"schedule: warmup must be a number of steps, or a fraction of them below 1, got {self.warmup}"
            )

    def __str__(self) -> str:
        final = "" if self.shape == "constant" else f", final={self.final}"
        return f"{self.shape}(warmup={self.warmup}{final})"

    @property
    def warmup_epochs(self) -> float | None:
        """The warmup in epochs; None if it is given otherwise."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?) epochs?", self.warmup) if isinstance(self.warmup, str) else None
        return float(found[1]) if found is not None else None

    def warmup_steps(self, steps: int, epoch_steps: float | None) -> int:
        """The warmup in steps, of `steps` in all and `epoch_steps` in an epoch."""
        if self.warmup_epochs is not None:
            return round(self.warmup_epochs * (epoch_steps or 0.0))
        assert not isinstance(self.warmup, str)
        return round(self.warmup * steps) if 0 < self.warmup < 1 else int(self.warmup)

    def factor(self, step: int, steps: int, epoch_steps: float | None = None) -> float:
        """The learning-rate factor for step `step` (counted from 0) of `steps`. `epoch_steps`: in an epoch."""
        warmup = self.warmup_steps(steps, epoch_steps)
        if step < warmup:
            return (step + 1) / warmup
        if self.shape == "constant":
            return 1.0
        progress = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))
        decay = progress if self.shape == "linear" else (1 - math.cos(math.pi * progress)) / 2
        return 1 - (1 - self.final) * decay


AnySchedule = Schedule | Callable[[int, int], float]
"""A Schedule, or the user's own function `factor(step, steps)`."""


def constant(warmup: Warmup = 0) -> Schedule:
    """A constant learning rate.

    Args:
        warmup: Number of steps over which the rate first rises linearly to its full value; or a fraction of all steps,
            such as `0.03`; or epochs, such as `"2 epochs"`. Default: 0.

    Example::

        oc.constant(warmup=500)
    """
    return Schedule("constant", warmup)


def linear(warmup: Warmup = 0, final: float = 0.0) -> Schedule:
    """A learning rate that decays linearly until the last step.

    Args:
        warmup: Number of steps over which the rate first rises linearly to its full value; or a fraction of all steps,
            such as `0.03`; or epochs, such as `"2 epochs"`. Default: 0.
        final: Rate at the last step, as a fraction of the optimizer's learning rate. Default: 0.

    Example::

        oc.linear(warmup=500, final=0.1)
    """
    return Schedule("linear", warmup, final)


def cosine(warmup: Warmup = 0, final: float = 0.0) -> Schedule:
    """A learning rate that decays along half a cosine period until the last step.

    Args:
        warmup: Number of steps over which the rate first rises linearly to its full value; or a fraction of all steps,
            such as `0.03`; or epochs, such as `"2 epochs"`. Default: 0.
        final: Rate at the last step, as a fraction of the optimizer's learning rate. Default: 0.

    Example::

        oc.cosine(warmup=500, final=0.1)
    """
    return Schedule("cosine", warmup, final)


def linear_scaling(lr: float, batch: int, base: int = 256) -> float:
    """Scale a learning rate in proportion to the batch size. Common for SGD (Goyal et al. 2017, arXiv:1706.02677).

    Args:
        lr: Learning rate that was tuned for a global batch of `base` samples.
        batch: The new global batch, in samples.
        base: The global batch that `lr` was tuned for, in samples. Default: 256.

    Returns:
        The learning rate for the new batch.

    Example::

        oc.SGD(lr=oc.linear_scaling(0.1, batch=2048), momentum=0.9)  # a rate of 0.8
    """
    return lr * batch / base


def sqrt_scaling(lr: float, batch: int, base: int = 256) -> float:
    """Scale a learning rate with the square root of the batch size. Common for Adam and LAMB (Krizhevsky 2014,
    arXiv:1404.5997).

    Args:
        lr: Learning rate that was tuned for a global batch of `base` samples.
        batch: The new global batch, in samples.
        base: The global batch that `lr` was tuned for, in samples. Default: 256.

    Returns:
        The learning rate for the new batch.

    Example::

        oc.AdamW(lr=oc.sqrt_scaling(3e-4, batch=1024))  # a rate of 6e-4
    """
    return lr * math.sqrt(batch / base)
