"""oc.prepare: everything made ready, the loop left to the user.

with oc.prepare(job()) as run:
    for batch in run:
        report = run.step(batch)
"""

import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal, overload

from onecurve.checkpoint.manifest import Standing
from onecurve.data.loader import Batch, EvaluationBatches, Reader
from onecurve.data.order import Sample
from onecurve.data.training_data import TrainingData, open_dataset
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.record import EvaluationRecord
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.runtime.assembly import assemble
from onecurve.runtime.checkpoints import Resumed, claim_for
from onecurve.runtime.manual import KeptRun, refuse_manual_backward
from onecurve.runtime.ready import Ready
from onecurve.train.early_stopping import BestTracker
from onecurve.train.loss_scale import LossScale
from onecurve.train.step_report import StepReport
from onecurve.train.update import OptimizerUpdate


class Run(Ready):
    """A training on this rank, made ready. Iterate for batches; `step` owns the backward pass."""

    def __init__(self, job: Job, plan: Plan | str = "auto", out: str | Path | None = None, fresh: bool = False) -> None:
        refuse_manual_backward(job, "prepare: run.step cannot train this job")
        super().__init__(job, plan, out, fresh)
        assembly = assemble(job, self.plan, self._mesh, self.device, self._data, self._deferred)
        self._hold(assembly.part)
        self.trainer = assembly.trainer
        if self._evaluation is not None:  # a mistake in it is told before training, not after
            self.trainer.try_measures(assembly.part.place(self._evaluation_sample))
        self._evaluation_seconds = 0.0
        self._newest: StepReport | None = None
        self.best = BestTracker(job.evaluate) if job.evaluate is not None else None
        """Of the evaluations so far."""
        self._begin()
        if self._checkpoints is not None:
            self.trainer.save_requested = self._checkpoints.overdue
        self._last_end = time.perf_counter()
        self._last_step = self.first_step - 1

    def _open_loaders(self, data: TrainingData, workers: int) -> None:
        super()._open_loaders(data, workers)
        self._evaluation: EvaluationBatches | None = None
        if self.job.evaluate is not None:
            reader = Reader(open_dataset(self.job.evaluate.data, "evaluate.data"), self.job.seed, self.job.collate)
            self._evaluation = EvaluationBatches(reader, self.plan, self.plan.mesh.data_rank(self.world.rank), workers)
            self._evaluation_sample = reader.batch([Sample(0, 0, 0)])

    def step(self, batch: Batch) -> StepReport:
        """Forward, backward, accumulate, reduce, clip, update."""
        report = self.trainer.step(batch.step, batch.rounds)
        now = time.perf_counter()
        self._readable, self._newest = self._newest if self.trainer.update.skips_on_device else report, report
        known = {"data": self._waited, "evaluation": self._evaluation_seconds, "checkpoint": self._saving}
        known |= report.seconds
        report.seconds = {**known, "other": now - self._last_end - sum(known.values())}
        self._last_end = now
        self._last_step = batch.step
        self._evaluation_seconds = self._saving = 0.0
        return report

    def evaluate(self) -> EvaluationRecord:
        """Loss and metrics over the job's evaluation data, each sample once; all ranks must call it."""
        if self._evaluation is None:
            raise OnecurveError("evaluate: the job has no evaluation data; give Job(evaluate=onecurve.Evaluate(…))")
        record = self.trainer.evaluate(self._last_step, self._evaluation)
        self._evaluation_seconds += record.seconds
        assert self.best is not None
        if self.best.add(record) and self.job.save is not None:
            self._wants_save = self.job.save.best
        return record

    @property
    def _updates(self) -> dict[str, OptimizerUpdate]:
        return {"": self.trainer.update}

    def _standing(self, step: int) -> Standing:
        scale, best = self.trainer.loss_scale, self.best
        loss = self._newest.loss if self._newest is not None else math.nan
        standing = replace(
            super()._standing(step),
            loss=loss if math.isfinite(loss) else None,
            loss_scale=scale.value,
            good_steps=scale.good_steps,
        )
        if best is None or best.step < 0:
            return standing
        return replace(
            standing,
            watched=_watched(best),
            best_value=best.value,
            best_step=best.step + 1,
            waited=best.evaluations_since,
        )

    def _take_state(self, resumed: Resumed) -> None:
        super()._take_state(resumed)
        standing = resumed.standing
        if resumed.root.plan.precision == "fp16":  # of others there is no scale to go on with
            self.trainer.loss_scale = LossScale(standing.loss_scale, standing.good_steps)
        if self.best is not None and standing.best_value is not None and standing.watched == _watched(self.best):
            self.best.value, self.best.step = standing.best_value, standing.best_step - 1
            self.best.evaluations_since = standing.waited

    def evaluation_due(self, step: int) -> bool:
        every = self.job.evaluate.every if self.job.evaluate else None
        return every is not None and ((step + 1) % every == 0 or step + 1 == self.steps)


@overload
def prepare(
    job: Job, plan: Plan | str = "auto", *, out: str | Path | None = None, backward: Literal["step"] = "step"
) -> Run: ...


@overload
def prepare(
    job: Job, plan: Plan | str = "auto", *, out: str | Path | None = None, backward: Literal["mine"]
) -> KeptRun: ...


def prepare(
    job: Job,
    plan: Plan | str = "auto",
    *,
    out: str | Path | None = None,
    backward: Literal["step", "mine"] = "step",
) -> Run | KeptRun:
    """Make a job ready on this rank, under torchrun or alone. `plan`: "auto", its text form, a plan.toml or a Plan.

    `out`: a folder for checkpoints; where it holds some of the same job, the run goes on from the newest.
    `backward`: `run.step` owns the backward pass; "mine" leaves it to you (two optimizers, reinforcement learning),
    with `run.model`, `run.backward(weighted)` and `run.update(name)`.
    """
    if not isinstance(job, Job):
        raise OnecurveError(
            f"prepare: it got {type(job).__name__}, an onecurve.Job is needed; call the function: job()"
        )
    if backward not in ("step", "mine"):
        raise OnecurveError(f"prepare: backward = {backward!r} (known: 'step', 'mine')")
    leads = (World.from_environment() or World()).rank == 0
    lock = claim_for(Path(out), job.save) if out is not None and leads else None
    try:
        run = KeptRun(job, plan, out) if backward == "mine" else Run(job, plan, out)
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    run.lock = lock
    if run.warning and leads:
        print(f"onecurve: {run.warning}", file=sys.stderr, flush=True)
    return run


def _watched(best: BestTracker) -> str:
    return f"{best.evaluate.better} {best.evaluate.watch}"
