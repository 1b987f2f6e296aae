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

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.job.hugging_face_labels import IGNORED, field_of, label_count, labels_of
from onecurve.job.weighted import Weighted


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


def hugging_face(output: Any, target: Any, inputs: Any = None) -> Weighted:
    """The loss that a Hugging Face model computes itself, `output.loss`, weighted by the number of labels in its mean.

    Such a loss is a mean over the labels of one micro-batch. Micro-batches with different numbers of labels must have
    different weights, or the result depends on how the batch is split.

    A load-balancing loss of experts inside `output.loss` (Mixtral with `output_router_logits=True`) is not a mean over
    labels and is refused; see `hugging_face_local_auxiliary`.

    Args:
        output: The output of a model that was called with labels. It has a `loss`.
        target: The labels, if `inputs` has none; otherwise ignored.
        inputs: The model's inputs, which onecurve passes. Their `labels` are used if there are any. Default: None.

    Returns:
        `output.loss` times the number of its labels, and this number. Labels of -100 (padding) are not counted. The
        first label of each sequence is not counted if the model predicts each token from those before it; such a model
        returns a `...CausalLMOutput...`. Before training starts it is tested that these numbers are the true ones.

    Example::

        oc.Job(
            model=MyModel,  # a Hugging Face model, such as AutoModelForCausalLM.from_config(config)
            data=lambda: MyDataset(),  # samples ({"input_ids": ..., "attention_mask": ..., "labels": ...}, 0)
            loss=oc.loss.hugging_face,
            optimizer=oc.AdamW(lr=3e-4),
            global_batch=256,
            epochs=3,
        )
    """
    loss = field_of(output, "loss")
    if not isinstance(loss, Tensor):
        raise OnecurveError(
            f"loss.hugging_face: the model's output ({type(output).__name__}) has no loss; pass labels to the model: a "
            'sample is a pair (inputs, target), and inputs must be a dict that contains "labels"'
        )
    count = label_count(output, labels_of(target, inputs))
    # The mean over no label at all is NaN. It must not enter the sum, which has other micro-batches.
    return Weighted(torch.where(count > 0, loss * count, torch.zeros_like(loss)), count)


def hugging_face_local_auxiliary(output: Any, target: Any, inputs: Any = None) -> Weighted:
    """The same as `hugging_face`, with the auxiliary loss `output.aux_loss` of each micro-batch by itself.

    The load-balancing loss of experts multiplies two averages over all tokens, so the sum over micro-batches is not the
    value of the whole batch. With this loss each micro-batch adds its own value, weighted by its labels, as is common
    in distributed training. The trained objective then depends on the plan's micro-batch size; `onecurve check`
    compares with a device that uses the same micro-batches.

    Args:
        output: The output of a model that was called with labels. It has a `loss` and an `aux_loss`.
        target: The labels, if `inputs` has none; otherwise ignored.
        inputs: The model's inputs, which onecurve passes. Their `labels` are used if there are any. Default: None.

    Returns:
        `output.loss` times the number of its labels, and this number.

    Example::

        oc.Job(
            model=MyModel,  # a Hugging Face model with experts, called with output_router_logits=True
            data=lambda: MyDataset(),  # samples ({"input_ids": ..., "attention_mask": ..., "labels": ...}, 0)
            loss=oc.loss.hugging_face_local_auxiliary,
            optimizer=oc.AdamW(lr=3e-4),
            global_batch=256,
            epochs=3,
        )
    """
    return hugging_face(output, target, inputs)


TAKES_INPUTS = (hugging_face, hugging_face_local_auxiliary)
"""Losses that are called with the model's inputs as a third argument."""
