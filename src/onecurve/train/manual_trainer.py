"""Optimizer updates for loops that call backward themselves: one optimizer per named child of the model."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from onecurve.describe.convert import nearest
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor
from onecurve.job.job import Job
from onecurve.job.objective import weigh
from onecurve.job.weighted import Weighted, add_weighted
from onecurve.train.state import TrainState
from onecurve.train.step_flags import StepFlags
from onecurve.train.step_report import StepReport, gradient_squares
from onecurve.train.update import OptimizerUpdate


class ManualPart(Protocol):
    """What this trainer needs of the rank's part of the model."""

    @property
    def device(self) -> Device: ...

    @property
    def group(self) -> Group: ...

    def local_tensors(self, child: str) -> Sequence[LocalTensor]: ...

    def backward(self, scaled: Tensor) -> None: ...

    def reduce(self, child: str) -> None: ...

    def clear_gradients(self) -> None: ...


class ManualTrainer:
    """Sums losses and gradients over backward passes, and updates one optimizer at a time.

    The first backward pass after an update starts anew: gradients that are left over belong to a loss that was already
    used, and are cleared.
    """

    def __init__(self, job: Job, part: ManualPart, steps: int, plan: Plan, flags: StepFlags | None = None) -> None:
        self._job, self._part, self._steps = job, part, steps
        self._flags = flags or StepFlags()
        self.updates: Mapping[str, OptimizerUpdate] = {
            name: OptimizerUpdate(factory, part.local_tensors(name), part.group, part.device, plan)
            for name, factory in job.optimizers.items()
        }
        self._totals = self._zeros()
        self._used: set[str] = set()
        self._step = 1
        self._start = TrainState()

    def resume(self, start: TrainState, steps: int) -> None:
        """Continue from the state of a checkpoint; the whole training now has `steps` steps."""
        self._start, self._steps = start, steps

    def begin_step(self, step: int) -> None:
        """Set the step, counted from 1, that updates belong to; the learning-rate schedule depends on it."""
        self._step = step

    def backward(self, value: Weighted | Tensor) -> None:
        """Add the gradients of a loss, given as a weighted sum or as one value per sample."""
        weighted = _weigh(value)
        if self._used:
            self._part.clear_gradients()
            self._totals = self._zeros()
            self._used = set()
        self._part.backward(weighted.sum / self._job.global_batch)
        add_weighted(self._totals, weighted.sum, weighted.count)

    def update(self, name: str) -> StepReport:
        """Reduce the gradients of one optimizer over the ranks, divide by the count of all losses, clip, update."""
        if name not in self.updates and list(self.updates) == [""]:
            raise OnecurveError(f"update: the job has one optimizer without a name, not {name!r}; call run.update()")
        if name not in self.updates:
            raise OnecurveError(f"update: no optimizer is named {name!r} ({nearest(name, list(self.updates))})")
        if name in self._used:
            raise OnecurveError(f"update: {name!r} was already updated with these gradients; call run.backward first")
        self._part.reduce(name)
        update = self.updates[name]
        lr = update.set_lr_factor(self._job.lr_factor(self._step - 1, self._steps))
        squares = gradient_squares(update.local_tensors).view(1).to(self._totals)
        sums = torch.cat([self._totals, squares, self._flags.answers(self._totals)])
        all_reduce_sum(self._part.group, sums)
        report = StepReport(
            step=self._step,
            lr=lr,
            samples=self._start.samples_after(self._step, self._job.global_batch),
            loss_scale=1.0,
            nominal=float(self._job.global_batch),
            sums=sums,
        )
        update.apply(report, self._job.clip)
        self._used.add(name)
        return report

    def _zeros(self) -> Tensor:
        """[loss sum, count]"""
        return torch.zeros(2, dtype=torch.float64, device=self._part.device.torch_device)


def _weigh(value: Weighted | Tensor) -> Weighted:
    if isinstance(value, Tensor) and value.dim() == 0:
        raise OnecurveError(
            "backward: a scalar does not say over how many samples it was taken; give "
            "onecurve.Weighted(sum, count) or one value per sample"
        )
    if not isinstance(value, Tensor | Weighted):
        raise OnecurveError(
            f"backward: got {type(value).__name__}; give onecurve.Weighted(sum, count), or a tensor with one value per "
            "sample"
        )
    return weigh(value, len(value) if isinstance(value, Tensor) else 0, "backward")
