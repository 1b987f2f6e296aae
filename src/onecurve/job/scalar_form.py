"""How the scalar of a loss is weighted in every micro-batch of every step.

The trial before training decides it once. A decision in each micro-batch by itself could weight two micro-batches of
one step by different things.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from onecurve.describe.scalar_form import ScalarForm
from onecurve.job.mean_calls import MeanCalls
from onecurve.job.mean_counts import Count
from onecurve.job.weighted import Weighted

REFUSED = math.inf
"""The count of a micro-batch whose scalar cannot be weighted. No true count has this value, and it survives the sum
over ranks: all of them skip the step, and read why."""

_RELATIVE_TOLERANCE = 1e-5
"""Sums of float32 weights differ by rounding."""


def weigh_scalar(value: Tensor, calls: MeanCalls, samples: int, form: ScalarForm | None) -> Weighted:
    """Convert a scalar to a sum and its count. `form`: None before the trial."""
    count = calls.count_of(value)
    if count is not None and (form is None or form.counted):
        return Weighted(_sum(value, count), count)
    return Weighted(value * samples, samples)


def excess(value: Tensor, calls: MeanCalls, samples: int, form: ScalarForm | None) -> Tensor | float:
    """0 if the scalar is what the trial has found, otherwise `REFUSED`; computed without waiting for the device."""
    if form is None or (form.counted and calls.count_of(value) is not None):
        return 0.0
    if form.counted:
        return REFUSED
    if form.per_sample is None:
        return 0.0
    if len(calls.calls) != len(form.per_sample):
        return REFUSED
    total: Tensor | float = 0.0
    for call, per_sample in zip(calls.calls, form.per_sample, strict=True):
        expected = per_sample * samples
        if isinstance(call.count, Tensor):
            is_as_expected = (call.count - expected).abs() <= _RELATIVE_TOLERANCE * abs(expected)
            total = total + torch.where(is_as_expected, 0.0, REFUSED)
        elif call.count is not None and abs(call.count - expected) > _RELATIVE_TOLERANCE * abs(expected):
            return REFUSED
    return total


def is_uneven(counts: Sequence[float], others: Sequence[float]) -> bool:
    """True if two lists of counts per sample differ."""
    return len(counts) != len(others) or any(
        abs(one - other) > _RELATIVE_TOLERANCE * abs(other) for one, other in zip(counts, others, strict=True)
    )


def _sum(mean: Tensor, count: Count) -> Tensor:
    """The sum that a mean was made of. The mean of nothing is NaN, and its sum is 0."""
    wide = mean.to(torch.promote_types(mean.dtype, torch.float32))
    if isinstance(count, int) and count:
        return wide * count
    empty = torch.as_tensor(count, device=mean.device) == 0
    return torch.where(empty, torch.zeros_like(wide), wide * count)
