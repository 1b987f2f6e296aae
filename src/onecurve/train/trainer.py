"""The training step and the evaluation, on this rank's part of the model."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.record import EvaluationRecord
from onecurve.describe.seed import mix
from onecurve.device.collectives import all_reduce_sum
from onecurve.device.compilation import explained_compilation
from onecurve.device.step_clock import step_clock
from onecurve.job.batch import MicroBatch, Objective
from onecurve.job.evaluation_metrics import evaluation_metrics_of
from onecurve.job.job import Job
from onecurve.job.objective import objective_of
from onecurve.job.row_tables import RowTables, Upcoming
from onecurve.job.whole_batch import WholeBatchLoss
from onecurve.train.audit import Audit
from onecurve.train.averages import Averages
from onecurve.train.branch_watch import BranchWatch
from onecurve.train.hooked_gradients import HookedGradients
from onecurve.train.loss_scale import LossScale
from onecurve.train.part import MeasuredParts, Part
from onecurve.train.state import TrainState
from onecurve.train.step_flags import StepFlags
from onecurve.train.step_report import StepReport, gradient_factor, gradient_squares
from onecurve.train.update import OptimizerUpdate
from onecurve.train.whole_batch import WholeBatch

_NOTHING: Upcoming = {}
_MEASURED_STEPS = 8
"""In one of so many steps, the gradients of parts of the batch are measured."""
_FIRST_STEPS = 256
"""The first steps are measured twice as often, for short runs."""


class Trainer:
    """Runs steps of a job on this rank's part."""

    def __init__(
        self,
        job: Job,
        part: Part,
        steps: int,
        data_rank: int,
        plan: Plan,
        flags: StepFlags | None = None,
        update: type[OptimizerUpdate] = OptimizerUpdate,
    ) -> None:
        self._job = job
        self._part = part
        self._steps = steps
        self._data_rank = data_rank
        self._plan = plan
        self.objective = objective_of(job.loss)
        """The job's loss as a sum and its count."""
        self._metrics = evaluation_metrics_of(self.objective, job.metrics)
        self._whole_batch = WholeBatch(job.loss, part, plan) if isinstance(job.loss, WholeBatchLoss) else None
        self._flags = flags or StepFlags()
        if not part.trainable:
            raise OnecurveError("model: no parameter to train (none has requires_grad=True)")
        self.update = update(job.optimizers[""], part.trainable, part.peers, part.device, plan)
        self._hooked = HookedGradients(part.gradient_hooks, part.trainable, part.peers)
        self.averages = Averages(job.ema, self.update.optimizer, part.trainable) if job.ema is not None else None
        """Averages of the weights, which evaluations use; None if the job does not want them."""
        if self.averages is not None and part.tables is not None:
            raise OnecurveError("Job: ema is not possible with embedding tables: their rows are not averaged")
        self._loss_scale = LossScale() if plan.precision == "fp16" else LossScale(1.0)
        self._scales_loss = plan.precision == "fp16"
        self._unread_report: StepReport | None = None
        self._start = TrainState()
        self.audit: Audit | None = None
        """Computes some steps a second time; None if the job does not want that."""
        self.audit_loss: Callable[[int, MicroBatch], None] | None = None
        """Compares the scalar loss of a micro-batch with those of its parts, in audited steps."""
        self.branches: BranchWatch | None = None
        """Watches the branches of a model that reads values."""

    def resume(self, start: TrainState, steps: int) -> None:
        """Continue from the state of a checkpoint; the whole training now has `steps` steps."""
        self._start, self._steps = start, steps

    def begin_audit(self, step: int, rounds: Sequence[MicroBatch], of_partner: Sequence[MicroBatch]) -> None:
        """Compute the share of another rank, before a step that is to be audited. `of_partner`: its samples."""
        assert self.audit is not None
        self.audit.begin(rounds, of_partner, partial(self._run_rounds, step))

    def step(self, step: int, rounds: Sequence[MicroBatch], upcoming: Upcoming = _NOTHING) -> StepReport:
        """Run one step: forward, backward, reduction, division by the true count, clipping, optimizer update.

        `step` is its number, counted from 1. Learning rate and random seeds are functions of the steps done before.
        `upcoming`: the next steps, for embedding tables whose rows are fetched ahead.
        """
        job, part, done = self._job, self._part, step - 1
        step_clock.begin(part.device, step)
        part.clear_gradients()
        lr_factor = job.lr_factor(done, self._steps)
        lr = self.update.set_lr_factor(lr_factor)
        if part.tables is not None:
            with step_clock.measure("tables"):
                part.tables.begin_step(step, rounds, upcoming)
        is_whole = self._whole_batch is None  # otherwise the gradient of a part depends on the other parts
        measured = part.part_squares if _is_measured(step) and is_whole else None
        compute = partial(self._run_rounds, step, measured=measured)
        if self.audit is not None and self.audit.has_begun:
            totals = self.audit.run(step, rounds, compute)
            if self.audit_loss is not None:
                self.audit_loss(step, rounds[0])
        else:
            totals = compute(rounds, self._data_rank)
        if self.branches is not None:
            self.branches.verify(step, self._start.samples_after(step, job.global_batch) - job.global_batch)
        if part.gradient_hooks:
            self._run_hooks(totals)
        with step_clock.measure("update"):
            squares = gradient_squares(part.trainable)
        if part.tables is not None:
            with step_clock.measure("tables"):
                squares += part.tables.reduce().to(squares.device)
        of_parts = measured.take(totals) if measured is not None else torch.zeros_like(totals[0])
        sums = torch.cat([totals, squares.view(1).to(totals), self._flags.answers(totals), of_parts.view(1)])
        with step_clock.measure("sync"):
            all_reduce_sum(part.group, sums)
        report = StepReport(
            step=step,
            lr=lr,
            samples=self._start.samples_after(step, job.global_batch),
            loss_scale=self._loss_scale.value,
            nominal=self._nominal,
            sums=sums,
            refusal=lambda: self.objective.refusal,
            parts=measured.parts if measured is not None else 0,
        )
        with step_clock.measure("update"):
            if self.averages is not None:
                self.averages.begin_update()
            skipped = self.update.apply(report, job.clip)
            part.restore_buffers(skipped)
            if self.averages is not None:
                self.averages.update(skipped)
        if part.tables is not None:
            with step_clock.measure("tables"):
                self._update_tables(part.tables, report, lr_factor)
        self._update_loss_scale(report)
        report.marks = step_clock.end()
        return report

    @property
    def _nominal(self) -> float:
        """What loss sums are divided by before backward."""
        return self._job.global_batch / self._loss_scale.value

    def _run_rounds(
        self,
        step: int,
        rounds: Sequence[MicroBatch],
        data_rank: int,
        measured: MeasuredParts | None = None,
    ) -> Tensor:
        """Forward, backward and reduction of one step, with the random seeds of a data-parallel rank."""
        seeds = [mix(self._job.seed, step - 1, number, data_rank, 2) for number in range(len(rounds))]
        objective: Objective = self.objective
        if self._whole_batch is not None:
            rounds, objective = self._whole_batch.with_gradients(rounds, seeds), self._whole_batch.objective
        compiling = explained_compilation(self._plan) if self._plan.compile else nullcontext()
        watched = self.branches.watched() if self.branches is not None else nullcontext()
        with measured.measured() if measured is not None else nullcontext(), compiling, watched:
            return self._part.run_rounds(rounds, objective, 1 / self._nominal, seeds)

    def _run_hooks(self, totals: Tensor) -> None:
        """Run the hooks of all parameters. The gradients are those of the loss sum / nominal."""
        with step_clock.measure("sync"):
            count = all_reduce_sum(self._part.group, totals[1:].clone())[0]
        with step_clock.measure("update"):
            self._hooked.run(self._nominal / count)

    def evaluate(self, step: int, batches: Iterable[MicroBatch]) -> EvaluationRecord:
        """Return loss and metrics over all batches of all ranks, after `step` steps.

        Filler batches are run but not counted. If there are averages of the weights, these are evaluated.
        """
        with self.averaged():
            return self._evaluate(step, batches)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Let the model have the averages of its weights for a while, if there are any."""
        if self.averages is None:
            yield
            return
        with self.averages.in_place():
            self._part.drop_gathered()
            yield
        self._part.drop_gathered()

    def keep_averages(self) -> None:
        """Replace the weights by their averages, if there are any. The model can only be evaluated from then on."""
        if self.averages is not None:
            self.averages.keep_in_place()
            self._part.drop_gathered()

    def _evaluate(self, step: int, batches: Iterable[MicroBatch]) -> EvaluationRecord:
        begin = time.perf_counter()
        device = self._part.device.torch_device
        totals: list[Tensor] | None = None
        samples = torch.zeros(1, dtype=torch.float64, device=device)
        for number, micro in enumerate(batches):
            micro = self._part.place(micro)
            # A model that draws random numbers in evaluation mode draws the same ones in every evaluation.
            self._part.device.seed(mix(self._job.seed, number, self._data_rank, 4))
            output = self._part.infer(micro)
            real = micro if micro.samples else MicroBatch(micro.inputs, micro.target, 1)
            sums = [metric.sums(output, real).to(device) for metric in self._metrics]
            if not (micro.samples and self._part.reports_metrics):
                sums = [torch.zeros_like(total) for total in sums]
            if self._whole_batch is not None:
                sums[0] = self._whole_batch.evaluate(output, micro)
            totals = sums if totals is None else [a + b for a, b in zip(totals, sums, strict=True)]
            samples += micro.samples * self._part.reports_metrics
        assert totals is not None
        if self._whole_batch is not None:
            totals[0] += self._whole_batch.end_evaluation()
        flat = all_reduce_sum(self._part.group, torch.cat([samples, *totals]))
        samples, *totals = torch.split(flat, [1, *(total.numel() for total in totals)])
        means = {m.name: m.finish(total.cpu()) for m, total in zip(self._metrics, totals, strict=True)}
        return EvaluationRecord(
            step=step,
            loss=means.pop("loss"),
            metrics=means,
            samples=int(samples.item()),
            seconds=time.perf_counter() - begin,
        )

    def try_metrics(self, micro: MicroBatch, output: Any) -> None:
        """Call the loss and the metrics once on the model's output, so that a mistake shows before training."""
        for metric in self._metrics:
            metric.sums(output, micro)

    @property
    def updates(self) -> Mapping[str, OptimizerUpdate]:
        return {"": self.update}

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale after all steps so far. Waits for the device if the last step has not been read yet."""
        scale = replace(self._loss_scale)
        if self._scales_loss and self._unread_report is not None:
            scale.update(self._unread_report.outcome.finite)
        return scale

    def restore_loss_scale(self, scale: LossScale) -> None:
        """Continue with the loss scale of a checkpoint; ignored unless this plan scales the loss."""
        if self._scales_loss:
            self._loss_scale = replace(scale)

    def _update_tables(self, tables: RowTables, report: StepReport, lr_factor: float) -> None:
        if report.outcome.finite:
            tables.update(gradient_factor(report.sums, report.nominal, self._job.clip).item(), lr_factor)
        else:
            tables.skip()

    def _update_loss_scale(self, report: StepReport) -> None:
        readable: StepReport | None = report
        if self.update.skips_on_device:  # this step is queued; the previous one can be read without waiting
            readable, self._unread_report = self._unread_report, report
        if self._scales_loss and readable is not None:
            self._loss_scale.update(readable.outcome.finite)


def _is_measured(step: int) -> bool:
    return step % (_MEASURED_STEPS // 2 if step < _FIRST_STEPS else _MEASURED_STEPS) == 0
