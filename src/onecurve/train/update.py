"""One optimizer and the pieces it updates: one division by the true count, clipping by the whole norm, the guard."""

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from onecurve.describe.plan import Plan
from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor, Value
from onecurve.job.layerwise import LayerWise
from onecurve.job.optimizer import OptimizerFactory, refuse_if_whole_needed
from onecurve.train.step_report import StepReport, factor, not_finite


class OptimizerUpdate:
    """Takes the gradients that lie summed in the pieces, and steps."""

    def __init__(
        self, factory: OptimizerFactory, local_tensors: Sequence[LocalTensor], group: Group, device: Device, plan: Plan
    ) -> None:
        self.local_tensors = local_tensors
        self._group = group
        self.optimizer = factory([(local_tensor.name, local_tensor.local) for local_tensor in local_tensors])  # type: ignore[misc]
        if plan.mesh.shard > 1 or plan.mesh.tensor > 1:
            refuse_if_whole_needed(self.optimizer, str(plan))
        if isinstance(self.optimizer, LayerWise):
            self.optimizer.whole = self._whole_squares
        self.base_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.skips_on_device = device.asynchronous and can_skip_on_device(self.optimizer)
        """Whether the host steps on without knowing what the step came to."""

    def set_rate(self, rate: float) -> float:
        """Every group's own rate times the schedule's; returns the first group's."""
        for group, base in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = base * rate
        return float(self.optimizer.param_groups[0]["lr"])

    def apply(self, report: StepReport, clip: float | None) -> Tensor | bool:
        """Update, unless the step was not finite; returns whether that was so, maybe as a flag still on the device."""
        by = factor(report.sums, report.nominal, clip)
        if self.skips_on_device:
            bad = not_finite(report.sums)
            self._step_unless(bad, by)
            return bad
        if report.outcome.finite:
            self._step(by.item())
        return not report.outcome.finite

    def state(self) -> dict[str, dict[str, Value]]:
        """What the optimizer keeps, by parameter: tensors as they are, not copies of them."""
        return {
            local_tensor.name: self.optimizer.state.get(local_tensor.local, {}) for local_tensor in self.local_tensors
        }

    def load_state(self, state: Mapping[str, Mapping[str, Value]]) -> None:
        """The inverse, by torch's own rules of types and devices; what has no elements here keeps no state."""
        names = {id(local_tensor.local): local_tensor.name for local_tensor in self.local_tensors}
        numbers = itertools.count()
        states: dict[int, dict[str, Value]] = {}
        groups = []
        for group in self.optimizer.param_groups:
            members = [(next(numbers), names[id(parameter)]) for parameter in group["params"]]
            states |= {number: dict(state[name]) for number, name in members if name in state}
            groups.append({**group, "params": [number for number, _ in members]})
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})

    def _step(self, by: float) -> None:
        if by != 1.0:
            torch._foreach_mul_(self._gradients(), by)
        self.optimizer.step()

    def _step_unless(self, bad: Tensor, by: Tensor) -> None:
        """The same where the host has not read the sums yet: the kernel itself leaves everything alone if they are
        `bad`. Only for optimizers that `can_skip_unread`."""
        gradients = self._gradients()
        if gradients:
            torch._foreach_mul_(gradients, by.to(gradients[0].dtype))
        self.optimizer.grad_scale = None  # type: ignore[attr-defined]
        self.optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
        self.optimizer.step()
        del self.optimizer.grad_scale, self.optimizer.found_inf  # type: ignore[attr-defined]

    def _gradients(self) -> list[Tensor]:
        return [local_tensor.local.grad for local_tensor in self.local_tensors if local_tensor.local.grad is not None]

    def _whole_squares(self, parameters: Sequence[Tensor], squares_of_parts: Tensor) -> Tensor:
        """Sums of squares of whole parameters, from those of this rank's parts; one column per parameter."""
        counted = {id(local_tensor.local): local_tensor.counted for local_tensor in self.local_tensors}
        mask = torch.tensor([counted[id(parameter)] for parameter in parameters], device=squares_of_parts.device)
        return all_reduce_sum(self._group, squares_of_parts * mask)


def can_skip_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """torch's fused kernels take the flag that a gradient scaler would give them."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))
