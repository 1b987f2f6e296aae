"""Findings about what is done between steps: checkpoints and evaluations."""

import math
from dataclasses import dataclass

from onecurve.describe.diagnosis import Finding, Gain, StepTimes
from onecurve.describe.units import seconds_text
from onecurve.diagnose.gains import saved
from onecurve.diagnose.history import RunHistory

_LARGEST_SHARE = 0.95
_CHECKPOINT_SHARE = 0.01
"""The part of the time that checkpoints should take at most."""
_EVALUATION_SHARE = 0.05
"""The same for evaluations."""


def checkpoints(history: RunHistory, times: StepTimes) -> Finding | None:
    """Checkpoints that are saved too often."""
    stopped = times.pauses.get("checkpoint", 0.0)
    # On a CPU, what writes checkpoints in the background takes the time of the cores that compute.
    on_cores = max(rank.saving_cpu_seconds / max(1, rank.steps) for rank in history.ranks)
    beside = on_cores * (1 - stopped / times.total) if history.start.device == "cpu" and times.total else 0.0
    saves = sum(event.event == "saved" for event in history.events)
    pause = _pause(history, times, stopped + beside, saves, _CHECKPOINT_SHARE)
    if pause is None:
        return None
    return Finding(
        cause="checkpoint",
        limit=(
            f"checkpoints take {pause.share:.0%} of the time: one every {_steps(pause.every)}; each stops the training "
            f"for {seconds_text(stopped * pause.every)}, and writing it takes "
            f"{seconds_text(on_cores * pause.every)} of CPU time"
        ),
        change=f"save=oc.Save(every={pause.rarer}) in the job",
        gain=pause.gain,
        job={"save_every": pause.rarer},
    )


def evaluations(history: RunHistory, times: StepTimes) -> Finding | None:
    """Evaluations that are made too often."""
    spent = times.pauses.get("evaluation", 0.0)
    made = sum(record.kind == "evaluation" for record in history.evaluations)
    pause = _pause(history, times, spent, made, _EVALUATION_SHARE)
    if pause is None:
        return None
    return Finding(
        cause="evaluation",
        limit=(
            f"evaluations take {pause.share:.0%} of the time: one every {_steps(pause.every)}, "
            f"{seconds_text(spent * pause.every)} each"
        ),
        change=f"every={pause.rarer} in the job's oc.Evaluate, or fewer samples to evaluate on",
        gain=pause.gain,
        job={"evaluate_every": pause.rarer},
    )


@dataclass(frozen=True)
class _Pause:
    """Something that is done every few steps, and takes too much of the time."""

    share: float
    """Fraction of the time."""
    every: int
    """Steps between two of them."""
    rarer: int
    """Steps at which they would take as much as they may."""
    gain: Gain


def _pause(history: RunHistory, times: StepTimes, spent: float, count: int, most: float) -> _Pause | None:
    """`spent`: seconds per step; `count`: how often it was done; `most`: the fraction of the time that it may take."""
    spent = min(spent, _LARGEST_SHARE * times.total)
    if not count or spent <= most * times.total:
        return None
    every, training = max(1, round(len(history.columns) / count)), times.total - spent
    rarer = _rounded(every * spent / (most * training))
    return _Pause(spent / times.total, every, rarer, saved(times.total, training + spent * every / rarer))


def _rounded(number: float) -> int:
    """The next larger number of 1, 2, 5, 10, 20, 50, …"""
    scale = 10 ** math.floor(math.log10(max(1.0, number)))
    return next(int(step * scale) for step in (1, 2, 5, 10) if step * scale >= number)


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count:,} steps"
