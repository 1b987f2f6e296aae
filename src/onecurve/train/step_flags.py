"""What a rank may ask for in a step. The answers are added over all ranks, so that all act on them at the same step."""

from collections.abc import Callable
from dataclasses import dataclass


def _never() -> bool:
    return False


@dataclass(frozen=True)
class StepFlags:
    """Asked once per step, on every rank."""

    stop: Callable[[], bool] = _never
    """True if this rank was asked to stop, for example by Ctrl-C."""
    save: Callable[[], bool] = _never
    """True if this rank finds that a checkpoint is due by the clock."""
