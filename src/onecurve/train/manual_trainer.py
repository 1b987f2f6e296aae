"""Updates where the user keeps the backward pass: sums and counts since the last update, one optimizer per name."""

from collections.abc import Callable, Mapping, Sequence
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
from onecurve.job.weighted import Weighted
from onecurve.train.step_report import StepReport, squares
from onecurve.train.update import OptimizerUpdate


class ManualPart(Protocol):
    """What is needed of the rank's part."""

    @property
    def device(self) -> Device: ...

    @property
    def group(self) -> Group: ...

    def local_tensors(self, child: str) -> Sequence[LocalTensor]: ...

    def backward(self, scaled: Tensor) -> None: ...

    def reduce(self, child: str) -> None: ...

    def clear_gradients(self) -> None: ...


class ManualTrainer:
    """A turn is some backward passes and the updates that use them. The first backward after an update begins the next
    turn: whatever gradients are left by then belonged to a loss that has been dealt with, and are cleared."""

    def __init__(self, job: Job, part: ManualPart, steps: int, plan: Plan) -> None:
        self._job, self._part, self._steps = job, part, steps
        self.updates: Mapping[str, OptimizerUpdate] = {
            name: OptimizerUpdate(factory, part.local_tensors(name), part.group, part.device, plan)
            for name, factory in job.optimizers.items()
        }
        self._totals = self._zeros()
        self._used: set[str] = set()
        self.step = 0
        self.save_requested: Callable[[], bool] = lambda: False

    def backward(self, value: Weighted | Tensor) -> None:
        weighted = _weigh(value)
        if self._used:
            self._part.clear_gradients()
            self._totals = self._zeros()
            self._used = set()
        self._part.backward(weighted.sum / self._job.global_batch)
        count = torch.as_tensor(weighted.count).to(self._totals)
        self._totals += torch.stack([weighted.sum.detach().to(self._totals), count])

    def update(self, name: str) -> StepReport:
        if name not in self.updates:
            raise OnecurveError(f"update: no optimizer is named {name!r} ({nearest(name, list(self.updates))})")
        if name in self._used:
            raise OnecurveError(f"update: {name!r} was updated already by these gradients; call run.backward first")
        self._part.reduce(name)
        update = self.updates[name]
        lr = update.set_rate(self._job.rate(self.step, self._steps))
        wishes = [torch.full_like(self._totals[:1], wish) for wish in (False, self.save_requested())]
        sums = torch.cat([self._totals, squares(update.local_tensors).view(1).to(self._totals), *wishes])
        all_reduce_sum(self._part.group, sums)
        nominal = float(self._job.global_batch)
        report = StepReport(self.step, lr, (self.step + 1) * self._job.global_batch, 1.0, nominal, sums)
        update.apply(report, self._job.clip)
        self._used.add(name)
        return report

    def _zeros(self) -> Tensor:
        """[loss sum, count]"""
        return torch.zeros(2, dtype=torch.float64, device=self._part.device.torch_device)


def _weigh(value: Weighted | Tensor) -> Weighted:
    if isinstance(value, Tensor) and value.dim() == 0:
        raise OnecurveError(
            "backward: a single number does not say of how many samples it is the loss; give "
            "onecurve.Weighted(sum, count) or one value per sample"
        )
    return weigh(value, len(value) if isinstance(value, Tensor) else 0, "backward")
