"""Evaluation metrics that are computed from sums over batches and ranks. Give them to `onecurve.Job(metrics=…)`.

Example::

    metrics = {"accuracy": oc.metric.top1, "auc": oc.metric.auc()}
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.job.weighted import Weighted

_AUC_BINS = 2000


@dataclass(frozen=True)
class Metric:
    """An evaluation metric that is not a mean over samples, such as an area under a curve.

    Each batch contributes a vector. The vectors are summed over all batches and ranks, and `finish` computes the metric
    from that sum. For a metric that is a mean, a function that returns a `onecurve.Weighted` is enough.

    Args:
        sums: A function `sums(output, target)` that returns a vector of fixed length.
        finish: A function that turns the sum of these vectors (float64, on the CPU) into the value of the metric.

    Example::

        # root mean squared error
        oc.Metric(
            sums=lambda output, target: torch.stack([(output - target).square().sum(), torch.ones_like(target).sum()]),
            finish=lambda total: (total[0] / total[1]).sqrt().item(),
        )
    """

    sums: Callable[[Any, Any], Tensor]
    finish: Callable[[Tensor], float]


def top1(logits_BC: Tensor, target_B: Tensor) -> Weighted:
    """Top-1 accuracy: the fraction of samples whose largest logit is that of the target class.

    Args:
        logits_BC: Logits of shape [batch, classes].
        target_B: Class indices of shape [batch].

    Returns:
        The number of correct samples, and the number of samples.

    Example::

        oc.metric.top1(logits_BC=torch.randn(8, 10), target_B=torch.randint(10, (8,)))
    """
    if logits_BC.dim() != 2 or target_B.dim() != 1:
        raise OnecurveError(
            f"metric top1: it takes logits of shape [batch, classes] and one class per sample, got "
            f"{list(logits_BC.shape)} and {list(target_B.shape)}. For tokens, write a metric that leaves out the "
            "padding: oc.Weighted(correct, count)"
        )
    return Weighted((logits_BC.argmax(-1) == target_B).sum(dtype=torch.float64), target_B.numel())


def auc() -> Metric:
    """Area under the ROC curve, for logits of shape [B] and targets 0 or 1 of shape [B].

    The metric is approximate. It counts sigmoid(logit) in 2000 histogram bins, because histograms can be summed over
    ranks; two scores in the same bin count as a tie. The error is at most half the fraction of
    (positive, negative) pairs that share a bin.

    Returns:
        A `onecurve.Metric`, whose value is between 0 and 1.

    Example::

        metrics = {"auc": oc.metric.auc()}
    """

    def sums(logits_B: Tensor, target_B: Tensor) -> Tensor:
        bins = (logits_B.double().sigmoid() * _AUC_BINS).long().clamp(0, _AUC_BINS - 1)
        return torch.bincount(bins + _AUC_BINS * (target_B > 0.5), minlength=2 * _AUC_BINS).double()

    def finish(total: Tensor) -> float:
        negative, positive = total.chunk(2)
        below = negative.cumsum(0) - negative
        pairs = (positive * (below + negative / 2)).sum()
        return (pairs / (negative.sum() * positive.sum())).item()

    return Metric(sums, finish)
