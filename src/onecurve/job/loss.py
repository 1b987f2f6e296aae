"""Loss functions that give the same result however a batch is split: they return one value per sample, or a sum with
its count. Give one to `onecurve.Job(loss=…)`.

Example::

    oc.Job(
        model=MyModel,
        data=lambda: MyDataset(),
        loss=oc.loss.cross_entropy,
        optimizer=oc.AdamW(lr=3e-4),
        global_batch=256,
        epochs=3,
    )
"""

import torch.nn.functional as F
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.job.weighted import Weighted

IGNORED = -100
"""The target value that `next_token` ignores; use it for padding."""


def next_token(logits_BTV: Tensor, target_BT: Tensor) -> Weighted:
    """Cross-entropy of a language model, averaged over tokens.

    Args:
        logits_BTV: Logits of shape [batch, tokens, vocabulary].
        target_BT: Token indices of shape [batch, tokens]. Targets of -100 (padding) are ignored and not counted.

    Returns:
        The sum over all tokens that are not ignored, and their number.

    Example::

        oc.loss.next_token(logits_BTV=torch.randn(2, 16, 1000), target_BT=torch.randint(1000, (2, 16)))
    """
    total = F.cross_entropy(logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=IGNORED, reduction="sum")
    return Weighted(total, (target_BT != IGNORED).sum())


def cross_entropy(logits_BC: Tensor, target_B: Tensor) -> Tensor:
    """Cross-entropy of a classifier, averaged over samples.

    Args:
        logits_BC: Logits of shape [batch, classes].
        target_B: Class indices of shape [batch].

    Returns:
        One value per sample, shape [batch].

    Example::

        oc.loss.cross_entropy(logits_BC=torch.randn(8, 10), target_B=torch.randint(10, (8,)))
    """
    return F.cross_entropy(logits_BC, target_B, reduction="none")


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error: averaged over the elements of each sample, then over samples.

    Args:
        output: A tensor of shape [batch, ...].
        target: A tensor of the same shape. Shapes are not broadcast.

    Returns:
        One value per sample, shape [batch].

    Example::

        oc.loss.mse(output=torch.randn(8, 3), target=torch.zeros(8, 3))
    """
    if output.shape != target.shape:
        raise OnecurveError(
            "loss.mse: output and target must have the same shape, got output "
            f"{list(output.shape)} and target {list(target.shape)}; reshape one of them"
        )
    return F.mse_loss(output, target, reduction="none").reshape(len(output), -1).mean(1)
