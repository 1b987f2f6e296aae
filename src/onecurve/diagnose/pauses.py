"""Findings about what is done between steps: checkpoints and evaluations."""

import math

from onecurve.describe.diagnosis import Finding, StepTimes
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
    spent = min(stopped + beside, _LARGEST_SHARE * times.total)
    saves = sum(event.event == "saved" for event in history.events)
    if not saves or spent <= _CHECKPOINT_SHARE * times.total:
        return None
    every = max(1, round(len(history.columns) / saves))
    training = times.total - spent
    rarer = _rounded(every * spent / (_CHECKPOINT_SHARE * training))
    return Finding(
        cause="checkpoint",
        limit=(
            f"checkpoints take {spent / times.total:.0%} of the time: one every {_steps(every)}; each stops the "
            f"training for {seconds_text(stopped * every)}, and writing it takes {seconds_text(on_cores * every)} of "
            "CPU time"
        ),
        change=f"save=oc.Save(every={rarer}) in the job",
        gain=saved(times.total, training + spent * every / rarer),
        job={"save_every": rarer},
    )


def evaluations(history: RunHistory, times: StepTimes) -> Finding | None:
    """Evaluations that are made too often."""
    spent = times.pauses.get("evaluation", 0.0)
    made = sum(record.kind == "evaluation" for record in history.evaluations)
    if not made or spent <= _EVALUATION_SHARE * times.total:
        return None
    every = max(1, round(len(history.columns) / made))
    training = times.total - spent
    rarer = _rounded(every * spent / (_EVALUATION_SHARE * training))
    return Finding(
        cause="evaluation",
        limit=(
            f"evaluations take {spent / times.total:.0%} of the time: one every {_steps(every)}, "
            f"{seconds_text(spent * every)} each"
        ),
        change=f"every={rarer} in the job's oc.Evaluate, or fewer samples to evaluate on",
        gain=saved(times.total, training + spent * every / rarer),
        job={"evaluate_every": rarer},
    )


def _rounded(number: float) -> int:
    """The next larger number of 1, 2, 5, 10, 20, 50, …"""
    scale = 10 ** math.floor(math.log10(max(1.0, number)))
    return next(int(step * scale) for step in (1, 2, 5, 10) if step * scale >= number)


def _steps(count: int) -> str:
    return "step" if count == 1 else f"{count:,} steps"
