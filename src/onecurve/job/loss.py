"""Losses whose parts add up to the whole: per sample, or a sum with its true count."""

import torch.nn.functional as F
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.job.weighted import Weighted

IGNORED = -100
"""Target value that is left out of `next_token`: pad targets with it."""


def next_token(logits_BTV: Tensor, target_BT: Tensor) -> Weighted:
    """Cross-entropy per token; targets of -100 (padding) are left out and not counted."""
    total = F.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=IGNORED, reduction="sum")
    return Weighted(total, (target_BT != IGNORED).sum())


def cross_entropy(logits_BC: Tensor, target_B: Tensor) -> Tensor:
    """Classification, per sample."""
    return F.cross_entropy(logits_BC, target_B, reduction="none")


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Squared error, averaged within each sample."""
    if output.shape != target.shape:
        raise OnecurveError(
            f"loss.mse: the output has shape {list(output.shape)}, the target {list(target.shape)}; make them equal"
        )
    return F.mse_loss(output, target, reduction="none").reshape(len(output), -1).mean(1)
