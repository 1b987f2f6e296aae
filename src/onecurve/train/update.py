"""From summed gradients to new weights: one division by the true count, clipping by the whole norm, the guard.

A rank's [loss sum, count, squares, stop] are added over all ranks in one reduction; each element's square is counted by
one rank. From there every rank computes the same numbers and takes the same decision.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onecurve.device.piece import Piece

_SMALL = 1e-6  # as torch.nn.utils.clip_grad_norm_


@dataclass(frozen=True)
class Outcome:
    """What a step came to, the same on all ranks."""

    loss: float
    count: float
    gradient_norm: float
    finite: bool
    stop: bool
    """Whether any rank was asked to stop."""


def squares(pieces: Sequence[Piece]) -> Tensor:
    """Sum of squares of the gradient's elements that this rank counts, in float64."""
    gradients = [piece.local.grad for piece in pieces if piece.counted and piece.local.grad is not None]
    if not gradients:
        return torch.zeros((), dtype=torch.float64, device=pieces[0].local.device if pieces else None)
    return torch.stack(torch._foreach_norm(gradients)).double().square().sum()


def outcome(sums: Sequence[float], nominal: float) -> Outcome:
    """Read the reduced sums. Gradients were taken of loss sum / nominal."""
    loss_sum, count, square_sum, stop = sums
    loss = loss_sum / count if count else math.nan
    norm = math.sqrt(square_sum) * nominal / count if count and square_sum >= 0 else math.nan
    return Outcome(loss, count, norm, math.isfinite(loss) and math.isfinite(norm), stop > 0)


def factor(sums: Tensor, nominal: float, clip: float | None) -> Tensor:
    """What to multiply gradients by: to the true count, and down to the clipping norm. On the device, no waiting."""
    scale = nominal / sums[1]
    if clip is None:
        return scale
    return scale * (clip / (sums[2].sqrt() * scale + _SMALL)).clamp(max=1.0)


def update(optimizer: torch.optim.Optimizer, pieces: Sequence[Piece], by: float) -> None:
    """Scale the gradients and take the optimizer's step."""
    if by != 1.0:
        torch._foreach_mul_(_gradients(pieces), by)
    optimizer.step()


def not_finite(sums: Tensor) -> Tensor:
    """The guard as a flag on the device."""
    return ~sums.isfinite().all() | (sums[1] == 0)


def update_unread(optimizer: torch.optim.Optimizer, pieces: Sequence[Piece], bad: Tensor, by: Tensor) -> None:
    """The same where the host has not read the sums yet: the kernel itself leaves everything alone if they are `bad`.
    Only for optimizers that `can_skip_unread`."""
    gradients = _gradients(pieces)
    if gradients:
        torch._foreach_mul_(gradients, by.to(gradients[0].dtype))
    optimizer.grad_scale = None  # type: ignore[attr-defined]
    optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


def can_skip_unread(optimizer: torch.optim.Optimizer) -> bool:
    """torch's fused kernels take the flag that a gradient scaler would give them."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def _gradients(pieces: Sequence[Piece]) -> list[Tensor]:
    return [piece.local.grad for piece in pieces if piece.local.grad is not None]
