"""The step, and the evaluation. What is saved of a training is its position and the part's and optimizer's state."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import EvaluationRecord, StepRecord
from onecurve.describe.seed import mix
from onecurve.device.exchange import add_over
from onecurve.job.batch import Micro
from onecurve.job.job import Job, Metric
from onecurve.job.optimizer import refuse_if_not_elementwise
from onecurve.train.objective import objective_of, weigh
from onecurve.train.part import Part
from onecurve.train.update import Outcome, can_skip_unread, factor, outcome, squares, update, update_unread


@dataclass
class Report:
    """What a step came to. On accelerators reading `outcome` waits for the device: read it a step late."""

    step: int
    lr: float
    samples: int
    nominal: int
    sums: Tensor
    seconds: dict[str, float] = field(default_factory=dict)
    _outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome:
        if self._outcome is None:
            self._outcome = outcome(self.sums.tolist(), self.nominal)
        return self._outcome

    @property
    def loss(self) -> float:
        return self.outcome.loss

    def record(self) -> StepRecord:
        seen = self.outcome
        return StepRecord(
            self.step, seen.loss, seen.count, seen.gradient_norm, self.lr, self.samples, not seen.finite, self.seconds
        )


class Trainer:
    """Runs steps of a job on this rank's part."""

    def __init__(self, job: Job, part: Part, steps: int, data_rank: int, *, sharded: bool, plan: str) -> None:
        self._job = job
        self._part = part
        self._steps = steps
        self._data_rank = data_rank
        self._objective = objective_of(job.loss)
        self.stop_requested: Callable[[], bool] = lambda: False
        if not part.trained:
            raise OnecurveError("model: no parameter to train (none has requires_grad=True)")
        named = [(piece.name, piece.local) for piece in part.trained]
        self.optimizer = job.optimizer(named)  # type: ignore[arg-type]
        if sharded:
            refuse_if_not_elementwise(self.optimizer, plan)
        self.base_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.unread = part.device.asynchronous and can_skip_unread(self.optimizer)

    def step(self, step: int, rounds: Sequence[Micro]) -> Report:
        """Forward, backward, reduce, divide, clip, update."""
        begin = time.perf_counter()
        job, part = self._job, self._part
        part.clear_gradients()
        lr = self._set_rate(step)
        seeds = [mix(job.seed, step, number, self._data_rank, 2) for number in range(len(rounds))]
        totals = part.run_rounds(rounds, self._objective, 1 / job.global_batch, seeds)
        after_rounds = time.perf_counter()
        stop = torch.tensor(float(self.stop_requested()), dtype=torch.float64)
        sums = torch.cat([totals, squares(part.trained).view(1).to(totals), stop.view(1).to(totals)])
        add_over(part.group, sums)
        report = Report(step, lr, (step + 1) * job.global_batch, job.global_batch, sums)
        by = factor(sums, job.global_batch, job.clip)
        if self.unread:
            update_unread(self.optimizer, part.trained, sums, by)
        elif report.outcome.finite:
            update(self.optimizer, part.trained, by.item())
        report.seconds = {"rounds": after_rounds - begin, "update": time.perf_counter() - after_rounds}
        return report

    def evaluate(self, step: int, batches: Iterable[Micro]) -> EvaluationRecord:
        """Loss and metrics over all batches of all ranks; fillers are run but not counted."""
        begin = time.perf_counter()
        measures: Mapping[str, Metric | None] = {"loss": None, **self._job.metrics}
        sums = torch.zeros(len(measures), 2, dtype=torch.float64, device=self._part.device.torch_device)
        samples = torch.zeros(1, dtype=torch.float64, device=sums.device)
        for micro in batches:
            micro = self._part.place(micro)
            output = self._part.infer(micro)
            if not micro.samples:
                continue
            samples += micro.samples
            for row, (name, metric) in enumerate(measures.items()):
                value = self._objective(output, micro) if metric is None else metric(output, micro.target)
                weighted = weigh(value, micro.samples, name)
                sums[row] += torch.stack([torch.as_tensor(value).to(sums) for value in (weighted.sum, weighted.count)])
        add_over(self._part.group, sums)
        add_over(self._part.group, samples)
        means = {name: _mean(*row) for name, row in zip(measures, sums.tolist(), strict=True)}
        seconds = time.perf_counter() - begin
        return EvaluationRecord(step, means.pop("loss"), means, int(samples.item()), seconds)

    def _set_rate(self, step: int) -> float:
        rate = self._job.rate(step, self._steps)
        for group, base in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = base * rate
        return float(self.optimizer.param_groups[0]["lr"])


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan
