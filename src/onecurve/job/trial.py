"""The job of a trial: some steps with a change, which leave nothing behind."""

import math
from dataclasses import dataclass, replace

from onecurve.describe.errors import OnecurveError
from onecurve.describe.requests import Trial
from onecurve.job.cadence import Every
from onecurve.job.evaluate import Evaluate
from onecurve.job.job import Job
from onecurve.job.save import Save

_NEVER = 10**9
"""Steps between checkpoints of a trial that is not about checkpoints."""


@dataclass(frozen=True)
class RisingRate:
    """A schedule whose factor grows from `first` to 1, by the same ratio in each step."""

    first: float

    def __call__(self, step: int, steps: int) -> float:
        return math.pow(self.first, 1 - step / max(1, steps - 1))


def trial_job(job: Job, trial: Trial) -> Job:
    """The job with the change of a trial. It saves and evaluates only if the trial is about that, writes into the
    trial's folder alone, audits nothing, and tells no tracker."""
    if job.row_servers is not None:
        raise OnecurveError("a job with row servers cannot be tried: the trial would change their rows")
    return replace(
        job,
        save=_save(job.save, trial) if job.save is not None else None,
        evaluate=_evaluate(job.evaluate, trial) if job.evaluate is not None else None,
        steps=trial.steps if job.steps is not None else None,
        epochs=_epochs(job.global_batch, trial) if job.steps is None else None,
        workers=int(trial.job.get("workers", 0)) or job.workers,
        schedule=RisingRate(trial.lr_factor) if trial.lr_factor else job.schedule,
        batch_norm="local" if trial.job.get("batch_norm") == "local" else job.batch_norm,
        trackers=(),
        audit=None,
    )


def _save(save: Save, trial: Trial) -> Save:
    own: Every | None = save.every if trial.pause == "checkpoint" else _NEVER
    every = int(trial.job["save_every"]) if "save_every" in trial.job else own
    return replace(save, every=every, last=1, keep_every=None, best=False, to=None)


def _evaluate(evaluate: Evaluate, trial: Trial) -> Evaluate | None:
    if trial.pause != "evaluation":
        return None
    return replace(evaluate, every=int(trial.job.get("evaluate_every", 0)) or evaluate.every, patience=None, test=None)


def _epochs(global_batch: int, trial: Trial) -> float:
    """As many epochs as make the steps of the trial: they are rounded up to whole steps."""
    return (trial.steps - 0.5) * global_batch / trial.epoch_samples
