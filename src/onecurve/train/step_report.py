"""What a step came to, read from sums that are the same on all ranks.

A rank's [loss sum, count, squares, stop, save] are added over all ranks in one reduction; each element's square is
counted by one rank. From there every rank computes the same numbers and takes the same decision.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from onecurve.describe.record import StepRecord
from onecurve.device.local_tensor import LocalTensor

_SMALL = 1e-6  # as torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True)
class StepOutcome:
    """What a step came to, the same on all ranks."""

    loss: float
    count: float
    gradient_norm: float
    finite: bool
    stop: bool
    """Whether any rank was asked to stop."""
    save: bool
    """Whether any rank finds that it is time to save."""


@dataclass
class StepReport:
    """A step as its caller sees it. On accelerators reading `outcome` waits for the device: read it a step late."""

    step: int
    lr: float
    samples: int
    loss_scale: float
    nominal: float = field(repr=False)
    """What the loss sums were divided by before backward."""
    sums: Tensor = field(repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    _outcome: StepOutcome | None = None

    @property
    def outcome(self) -> StepOutcome:
        if self._outcome is None:
            self._outcome = outcome(self.sums.tolist(), self.nominal)
        return self._outcome

    @property
    def loss(self) -> float:
        return self.outcome.loss

    def record(self) -> StepRecord:
        seen = self.outcome
        return StepRecord(
            step=self.step,
            loss=seen.loss,
            count=seen.count,
            gradient_norm=seen.gradient_norm,
            lr=self.lr,
            loss_scale=self.loss_scale,
            samples=self.samples,
            skipped=not seen.finite,
            seconds=self.seconds,
        )


def squares(local_tensors: Sequence[LocalTensor]) -> Tensor:
    """Sum of squares of the gradient's elements that this rank counts, in float64."""
    gradients = [
        local_tensor.local.grad
        for local_tensor in local_tensors
        if local_tensor.counted and not local_tensor.repeated and local_tensor.local.grad is not None
    ]
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=local_tensors[0].local.device if local_tensors else None)
    return torch.stack(torch._foreach_norm(gradients)).double().square().sum()


def outcome(sums: Sequence[float], nominal: float) -> StepOutcome:
    """Read the reduced sums. Gradients were taken of loss sum / nominal."""
    loss_sum, count, square_sum, stop, save = sums
    loss = loss_sum / count if count else math.nan
    norm = math.sqrt(square_sum) * nominal / count if count and square_sum >= 0 else math.nan
    return StepOutcome(loss, count, norm, math.isfinite(loss) and math.isfinite(norm), stop > 0, save > 0)


def factor(sums: Tensor, nominal: float, clip: float | None) -> Tensor:
    """What to multiply gradients by: to the true count, and down to the clipping norm. On the device, no waiting."""
    scale = nominal / sums[1]
    if clip is None:
        return scale
    return scale * (clip / (sums[2].sqrt() * scale + _SMALL)).clamp(max=1.0)


def not_finite(sums: Tensor) -> Tensor:
    """The guard as a flag on the device."""
    return ~sums.isfinite().all() | (sums[1] == 0)
