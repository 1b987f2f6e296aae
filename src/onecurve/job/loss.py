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

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.job.contrastive import Contrast
from onecurve.job.hugging_face_labels import IGNORED, field_of, label_count, labels_of
from onecurve.job.weighted import Weighted
from onecurve.job.whole_batch import WholeBatchLoss


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


def whole_batch(embed: Callable[[Any], Any], loss: Callable[[Any, Any], Any]) -> WholeBatchLoss:
    """A loss that compares the samples of a batch with each other, such as one with in-batch negatives.

    It is exact however the batch is split over ranks and rounds. A first pass computes the embeddings of all samples
    without gradients; they are gathered, and the gradient of the loss with respect to them is computed. A second pass
    with the same randomness starts its backward from that gradient. `onecurve check` compares it with one device.

    Args:
        embed: A function of the model's output that returns what the loss needs: a tensor whose first dimension is the
            samples, or a tuple or dict of such tensors. A tensor without dimensions, such as a learned temperature, is
            the same for all samples.
        loss: A function (embeddings, target) of the whole batch, which returns a scalar mean, one value per sample, or
            a `onecurve.Weighted`.

    Returns:
        The loss, for `Job(loss=…)`.

    Example::

        def triplet(embeddings, labels):
            distances = torch.cdist(embeddings, embeddings)
            same = labels[:, None] == labels[None]
            farthest = (distances * same).amax(1)
            nearest = distances.masked_fill(same, float("inf")).amin(1)
            return F.relu(farthest - nearest + 0.2)


        oc.loss.whole_batch(embed=lambda output: output, loss=triplet)
    """
    for name, function in (("embed", embed), ("loss", loss)):
        if not callable(function):
            raise OnecurveError(f"loss.whole_batch: {name} must be a function, got {type(function).__name__}")
    return WholeBatchLoss(embed, loss)


def clip(temperature: float = 0.07) -> WholeBatchLoss:
    """The loss of CLIP: each sample's two embeddings must find each other among those of the whole batch.

    The model returns two tensors of shape [batch, width], and perhaps the logarithm of a learned factor of the
    similarities, a parameter without dimensions (CLIP starts with log(1 / 0.07)). Embeddings are normalized here; the
    factor is limited to 100. The targets are not used.

    Args:
        temperature: What similarities are divided by, if the model returns no factor. Default: 0.07.

    Returns:
        The loss, for `Job(loss=…)`: the mean of both directions.

    Example::

        oc.loss.clip(temperature=0.1)
    """
    return _contrast("clip", temperature, symmetric=True)


def info_nce(temperature: float = 0.07) -> WholeBatchLoss:
    """The InfoNCE loss: each query must find its key among the keys of the whole batch.

    The model returns two tensors of shape [batch, width], queries and keys, which are normalized here. The targets are
    not used.

    Args:
        temperature: What similarities are divided by. Default: 0.07.

    Returns:
        The loss, for `Job(loss=…)`.

    Example::

        oc.loss.info_nce(temperature=0.1)
    """
    return _contrast("info_nce", temperature, symmetric=False)


def _contrast(name: str, temperature: float, symmetric: bool) -> WholeBatchLoss:
    if not temperature > 0:
        raise OnecurveError(f"loss.{name}: temperature must be above 0, got {temperature}")
    return WholeBatchLoss(_as_it_is, Contrast(temperature, symmetric, name))


def _as_it_is(output: Any) -> Any:
    return output


TAKES_INPUTS = (hugging_face, hugging_face_local_auxiliary)
"""Losses that are called with the model's inputs as a third argument."""
