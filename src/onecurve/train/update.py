"""One optimizer and its local tensors: gradient scaling by the true count, clipping, skipping of bad steps, update."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.plan import Plan
from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor, Value
from onecurve.job.full_parameter import FullParameterOptimizer
from onecurve.job.layerwise import LayerWise
from onecurve.job.optimizer import OptimizerFactory, refuse_if_not_shardable
from onecurve.job.optimizer_factory import build_optimizer, refuse_closure
from onecurve.train.full_matrices import FullMatrices
from onecurve.train.step_report import StepReport, gradient_factor, not_finite


class OptimizerUpdate:
    """Updates this rank's local tensors with gradients that are already summed over ranks and rounds."""

    def __init__(
        self, factory: OptimizerFactory, local_tensors: Sequence[LocalTensor], group: Group, device: Device, plan: Plan
    ) -> None:
        self.local_tensors = local_tensors
        self._group, self._device = group, device
        self.optimizer = build_optimizer(factory, [(each.name, each.local) for each in local_tensors])  # type: ignore[misc]
        if plan.mesh.shard > 1 or plan.mesh.tensor > 1:
            refuse_if_not_shardable(self.optimizer, str(plan))
        self._masks: dict[tuple[int, ...], Tensor] = {}
        """Which parameters this rank counts in norms, by the parameters that have a gradient."""
        if isinstance(self.optimizer, LayerWise):
            self.optimizer.reduce_squares = self._reduce_squares
        if isinstance(self.optimizer, FullParameterOptimizer):
            FullMatrices(local_tensors, group).attach(self.optimizer)
        self.base_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.skips_on_device = device.asynchronous and can_skip_on_device(self.optimizer)
        """True if the device itself skips a bad step, so that the host continues without reading the outcome."""
        if isinstance(self.optimizer, torch.optim.SGD) and can_skip_on_device(self.optimizer):
            _start_momentum(self.optimizer)

    def set_lr_factor(self, factor: float) -> float:
        """Multiply every group's base learning rate by the schedule's factor; return the first group's rate."""
        for group, base_rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = base_rate * factor
        return float(self.optimizer.param_groups[0]["lr"])

    def apply(self, report: StepReport, clip: float | None) -> Tensor | bool:
        """Update the parameters unless the step is not finite; return True if the update was skipped.

        The result is a flag on the device if `skips_on_device`.
        """
        self._match_strides()
        scale = gradient_factor(report.sums, report.nominal, clip)
        if self.skips_on_device:
            skip = not_finite(report.sums)
            self._step_unless(skip, scale)
            return skip
        if report.outcome.finite:
            self._step(scale)
        return not report.outcome.finite

    def state(self) -> dict[str, dict[str, Value]]:
        """The optimizer state by parameter name. Tensors are not copied."""
        return {
            local_tensor.name: self.optimizer.state.get(local_tensor.local, {}) for local_tensor in self.local_tensors
        }

    def load_state(self, state: Mapping[str, Mapping[str, Value]]) -> None:
        """Load optimizer state by parameter name, with torch's rules for dtypes and devices.

        A parameter without elements on this rank has no state.
        """
        names = {id(local_tensor.local): local_tensor.name for local_tensor in self.local_tensors}
        indices = itertools.count()
        states: dict[int, dict[str, Value]] = {}
        groups = []
        for group in self.optimizer.param_groups:
            members = [(next(indices), names[id(parameter)]) for parameter in group["params"]]
            states |= {index: dict(state[name]) for index, name in members if name in state}
            groups.append({**group, "params": [index for index, _ in members]})
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})

    def _step(self, scale: Tensor) -> None:
        self._scale_gradients(scale)
        rates = self._rates
        try:
            self.optimizer.step()
        except (OnecurveError, RuntimeError):  # such as that of a collective
            raise
        except Exception as error:
            if "closure" in str(error):
                refuse_closure(self.optimizer)
            raise UserCodeError(
                f"optimizer: step() of {type(self.optimizer).__name__} raised {type(error).__name__}: {error}"
            ) from error
        if self._rates != rates:
            raise OnecurveError(
                f"optimizer: step() of {type(self.optimizer).__name__} changed its learning rate (lr of a group), "
                "which the job's schedule sets before each step; use Job(schedule=…), a function factor(step, steps)"
            )

    @property
    def _rates(self) -> list[Any]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _step_unless(self, skip: Tensor, scale: Tensor) -> None:
        """Step without reading the sums on the host: the fused kernel changes nothing if the flag `skip` is true.

        Works only for optimizers for which `can_skip_on_device` is true.
        """
        self._scale_gradients(scale)
        self.optimizer.grad_scale = None  # type: ignore[attr-defined]
        self.optimizer.found_inf = skip.float()  # type: ignore[attr-defined]
        self.optimizer.step()
        del self.optimizer.grad_scale, self.optimizer.found_inf  # type: ignore[attr-defined]

    def _scale_gradients(self, scale: Tensor) -> None:
        gradients = self._gradients()
        if self._device.asynchronous:
            if gradients:
                torch._foreach_mul_(gradients, scale.to(gradients[0].dtype))
        elif (factor := scale.item()) != 1.0:
            torch._foreach_mul_(gradients, factor)

    @torch.no_grad()
    def _match_strides(self) -> None:
        """Give each gradient its parameter's strides: fused optimizers read both in the order of memory.

        autograd guarantees this where it accumulates a gradient itself. Gradients of DTensors, of a backward that is
        split into two parts and of a reduction over buckets can have others.
        """
        for parameter in (local_tensor.local for local_tensor in self.local_tensors):
            gradient = parameter.grad
            if gradient is not None and gradient.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(gradient)

    def _gradients(self) -> list[Tensor]:
        return [local_tensor.local.grad for local_tensor in self.local_tensors if local_tensor.local.grad is not None]

    def _reduce_squares(self, parameters: Sequence[Tensor], local_squares: Tensor) -> Tensor:
        """Sum the sums of squares of the ranks' parts to those of the full parameters; one column per parameter."""
        key = tuple(map(id, parameters))
        if key not in self._masks:  # a copy to the device makes the host wait
            counts = {id(local_tensor.local): local_tensor.counts_in_norm for local_tensor in self.local_tensors}
            self._masks[key] = torch.tensor([counts[parameter] for parameter in key], device=local_squares.device)
        return all_reduce_sum(self._group, local_squares * self._masks[key])


class SentUpdate(OptimizerUpdate):
    """Changes nothing: the gradients are sent to those who update the parameters."""

    def __init__(
        self, factory: OptimizerFactory, local_tensors: Sequence[LocalTensor], group: Group, device: Device, plan: Plan
    ) -> None:
        super().__init__(factory, local_tensors, group, device, plan)
        self.skips_on_device = False  # what is sent must be known to be finite

    def apply(self, report: StepReport, clip: float | None) -> Tensor | bool:  # noqa: ARG002
        return not report.outcome.finite


def can_skip_on_device(optimizer: torch.optim.Optimizer) -> bool:
    """True for torch's fused optimizers, which accept the `found_inf` flag of a gradient scaler.

    Not for SGD with dampening: its first step does not dampen, so it must be known which step is the first.
    """
    damped = any(group.get("momentum") and group.get("dampening") for group in optimizer.param_groups)
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False)) and not damped


def _start_momentum(optimizer: torch.optim.SGD) -> None:
    """Start with momentum of zeros. The fused kernel never writes what torch allocates if the first step is skipped,
    and fails if a parameter gets its first gradient after others."""
    for group in optimizer.param_groups:
        if group["momentum"]:
            for parameter in group["params"]:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
