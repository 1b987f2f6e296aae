"""Metrics: sums that are added over batches and ranks, and what is made of the total."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onecurve.job.weighted import Weighted

_BINS = 2000


@dataclass(frozen=True)
class Metric:
    """For what is not a mean: `sums(output, target)` gives a vector, `finish` turns the vectors' sum into a number."""

    sums: Callable[[Any, Any], Tensor]
    finish: Callable[[Tensor], float]


def top1(logits_BC: Tensor, target_B: Tensor) -> Weighted:
    """The fraction of samples whose largest logit is the target."""
    return Weighted((logits_BC.argmax(-1) == target_B).sum(dtype=torch.float64), target_B.numel())


def auc() -> Metric:
    """Area under the ROC curve of logits [B] against targets 0 or 1 [B].

    From histograms of sigmoid(logit) over 2000 bins, since only sums can be added over ranks; scores in one bin count
    as ties, so the error is below one bin's share of the pairs.
    """

    def sums(logits_B: Tensor, target_B: Tensor) -> Tensor:
        bins = (logits_B.double().sigmoid() * _BINS).long().clamp(0, _BINS - 1)
        return torch.bincount(bins + _BINS * (target_B > 0.5), minlength=2 * _BINS).double()

    def finish(total: Tensor) -> float:
        negative, positive = total.chunk(2)
        below = negative.cumsum(0) - negative
        pairs = (positive * (below + negative / 2)).sum()
        return (pairs / (negative.sum() * positive.sum())).item()

    return Metric(sums, finish)
