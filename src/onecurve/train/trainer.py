"""The step, and the evaluation. What is saved of a training is its position and the part's and optimizer's state."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.record import EvaluationRecord
from onecurve.describe.seed import mix
from onecurve.device.collectives import all_reduce_sum
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Job
from onecurve.job.objective import objective_of
from onecurve.train.evaluation_metrics import measures_of
from onecurve.train.loss_scale import LossScale
from onecurve.train.part import Part
from onecurve.train.step_report import StepReport, squares
from onecurve.train.update import OptimizerUpdate


class Trainer:
    """Runs steps of a job on this rank's part."""

    def __init__(self, job: Job, part: Part, steps: int, data_rank: int, plan: Plan) -> None:
        self._job = job
        self._part = part
        self._steps = steps
        self._data_rank = data_rank
        self._objective = objective_of(job.loss)
        self._measures = measures_of(self._objective, job.metrics)
        self.stop_requested: Callable[[], bool] = lambda: False
        self.save_requested: Callable[[], bool] = lambda: False
        if not part.trained:
            raise OnecurveError("model: no parameter to train (none has requires_grad=True)")
        self.update = OptimizerUpdate(job.optimizers[""], part.trained, part.peers, part.device, plan)
        self._loss_scale = LossScale() if plan.precision == "fp16" else LossScale(1.0)
        self._scales_loss = plan.precision == "fp16"
        self._unread_report: StepReport | None = None

    def step(self, step: int, rounds: Sequence[MicroBatch]) -> StepReport:
        """Forward, backward, reduce, divide, clip, update."""
        begin = time.perf_counter()
        job, part = self._job, self._part
        part.clear_gradients()
        lr = self.update.set_rate(job.rate(step, self._steps))
        seeds = [mix(job.seed, step, number, self._data_rank, 2) for number in range(len(rounds))]
        nominal = job.global_batch / self._loss_scale.value
        totals = part.run_rounds(rounds, self._objective, 1 / nominal, seeds)
        after_rounds = time.perf_counter()
        # Filled where they are needed: copied there from the host they would make it wait for the device.
        wishes = [torch.full_like(totals[:1], wish) for wish in (self.stop_requested(), self.save_requested())]
        sums = torch.cat([totals, squares(part.trained).view(1).to(totals), *wishes])
        all_reduce_sum(part.group, sums)
        report = StepReport(step, lr, (step + 1) * job.global_batch, self._loss_scale.value, nominal, sums)
        part.restore_batch_norm(self.update.apply(report, job.clip))
        self._learn_scale(report)
        report.seconds = {"rounds": after_rounds - begin, "update": time.perf_counter() - after_rounds}
        return report

    def evaluate(self, step: int, batches: Iterable[MicroBatch]) -> EvaluationRecord:
        """Loss and metrics over all batches of all ranks; fillers are run but not counted."""
        begin = time.perf_counter()
        device = self._part.device.torch_device
        totals: list[Tensor] | None = None
        samples = torch.zeros(1, dtype=torch.float64, device=device)
        for micro in batches:
            micro = self._part.place(micro)
            output = self._part.infer(micro)
            real = micro if micro.samples else MicroBatch(micro.inputs, micro.target, 1)
            sums = [measure.sums(output, real).to(device) for measure in self._measures]
            if not (micro.samples and self._part.reports):
                sums = [torch.zeros_like(each) for each in sums]
            totals = sums if totals is None else [a + b for a, b in zip(totals, sums, strict=True)]
            samples += micro.samples * self._part.reports
        assert totals is not None
        flat = all_reduce_sum(self._part.group, torch.cat([samples, *totals]))
        samples, *totals = torch.split(flat, [1, *(each.numel() for each in totals)])
        means = {m.name: m.finish(total.cpu()) for m, total in zip(self._measures, totals, strict=True)}
        seconds = time.perf_counter() - begin
        return EvaluationRecord(step, means.pop("loss"), means, int(samples.item()), seconds)

    def try_measures(self, micro: MicroBatch) -> Any:
        """Call loss and metrics once, so that a mistake in them is told before training. Returns the output."""
        output = self._part.infer(micro)
        for measure in self._measures:
            measure.sums(output, micro)
        return output

    @property
    def loss_scale(self) -> LossScale:
        """As of all steps so far; waits for the device where a step has not been read yet."""
        scale = replace(self._loss_scale)
        if self._scales_loss and self._unread_report is not None:
            scale.update(self._unread_report.outcome.finite)
        return scale

    @loss_scale.setter
    def loss_scale(self, scale: LossScale) -> None:
        if self._scales_loss:
            self._loss_scale = replace(scale)

    def _learn_scale(self, report: StepReport) -> None:
        known: StepReport | None = report
        if self.update.skips_on_device:  # this step is queued; the one before it can be read without waiting
            known, self._unread_report = self._unread_report, report
        if self._scales_loss and known is not None:
            self._loss_scale.update(known.outcome.finite)
