"""The wall time of a whole run by cause: starting, steps that count, steps that were lost, recovery, the end."""

from collections.abc import Callable

from onecurve.describe.record import PAUSES
from onecurve.diagnose.history import GenerationHistory, RunHistory, Seconds

Add = Callable[[str, float], None]
"""(cause, seconds) → None."""

_MACHINES = ("agree",)
"""Causes of a recovery in which a run may wait for machines."""


def wall_time(history: RunHistory) -> Seconds:
    """The seconds of a run by cause. Time in which it was not running, until it was started again, is not counted."""
    wall: Seconds = {}

    def add(cause: str, seconds: float) -> None:
        wall[cause] = wall.get(cause, 0.0) + max(0.0, seconds)

    generations = history.generations
    for generation, after in zip(generations, [*generations[1:], None], strict=True):
        _add_start(generation, add)
        paused = sum(generation.seconds.get(cause, 0.0) for cause in PAUSES)
        total = sum(generation.seconds.values())
        add("steps", total - generation.first_step_seconds - generation.lost_seconds - paused)
        for cause in PAUSES:
            add(cause, generation.seconds.get(cause, 0.0))
        add("lost", generation.lost_seconds + _unfinished(generation, after))
        for cause, seconds in (generation.end.seconds if generation.end is not None else {}).items():
            add(cause, seconds)
        add("exit", generation.exit_seconds)
    return {cause: seconds for cause, seconds in wall.items() if seconds > 0}


def _add_start(generation: GenerationHistory, add: Add) -> None:
    record = generation.record
    if generation.start.generation == 1 or record is None:
        for cause, seconds in generation.start.seconds.items():
            add(cause, seconds)
        add("first_step", generation.first_step_seconds)
        return
    for cause, seconds in record.seconds.items():
        add("machines" if cause in _MACHINES else "first_step" if cause == "step" else "recovery", seconds)


def _unfinished(generation: GenerationHistory, after: GenerationHistory | None) -> float:
    """Seconds of the step that was interrupted."""
    if after is None or after.start.generation == 1 or after.record is None or not generation.last_time:
        return 0.0
    interrupted = after.record.time - sum(after.record.seconds.values())
    return interrupted - generation.last_time
