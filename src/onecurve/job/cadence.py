"""How often something is done: every so many steps, or once per epoch."""

from typing import Literal, NamedTuple

from onecurve.describe.errors import OnecurveError

Every = int | Literal["epoch"]
"""A number of steps, or `"epoch"`: after the step that completes an epoch."""


class TrainingPoint(NamedTuple):
    """How far a training is."""

    steps: int
    epochs: int
    """Complete ones."""


def is_reached(every: Every | None, before: TrainingPoint, now: TrainingPoint) -> bool:
    """True if something that is done so often became due between two points."""
    if every is None:
        return False
    if every == "epoch":
        return now.epochs > before.epochs
    return now.steps // every > before.steps // every


def is_audited(step: int, first_step: int, every: int) -> bool:
    """True if a step is computed a second time: one of `every`, and the first one of a process, which shows early what
    cannot be audited."""
    return step % every == 0 or step == first_step


def check_positive_integer(owner: str, name: str, value: int) -> None:
    """Refuse what is not an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OnecurveError(f"{owner}: {name} must be an integer of at least 1, got {value!r}")


def check_every(owner: str, name: str, value: object) -> None:
    """Refuse what is neither a number of steps nor `"epoch"`."""
    if value == "epoch":
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise OnecurveError(f"{owner}: {name} must be an integer of at least 1, or 'epoch', got {value!r}")
