"""Where the output and the labels of a Hugging Face model are, and how many labels its loss averages over."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from onecurve.describe.errors import OnecurveError

IGNORED = -100
"""The target value that `next_token` and `hugging_face` ignore; use it for padding."""


def field_of(output: Any, name: str) -> Any:
    """A named field of a model's output, whether it is an attribute or a key; None if it is missing."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def labels_of(target: Any, inputs: Any) -> Tensor:
    """The labels among the model's inputs; if there are none, the target."""
    labels = inputs.get("labels") if isinstance(inputs, Mapping) else None
    labels = target if labels is None else labels
    if not isinstance(labels, Tensor):
        raise OnecurveError(
            'loss.hugging_face: there are no labels; put them into the inputs of the model, as "labels", or return '
            f"them as the target of the sample (it is {type(target).__name__})"
        )
    return labels


def predicts_next(output: Any) -> bool:
    """True if the model compares the output at each position with the next label."""
    return "CausalLM" in type(output).__name__


def label_count(output: Any, labels: Tensor) -> Tensor:
    """Return how many labels `output.loss` averages over."""
    logits = field_of(output, "logits")
    if labels.is_floating_point():  # a regression, or several labels per sample
        return labels.new_tensor(labels.numel())
    if labels.dim() < 2:
        return (labels != IGNORED).sum()
    if isinstance(logits, Tensor) and logits.dim() == 3 and logits.shape[:2] != labels.shape[:2]:
        return labels.new_tensor(len(labels))  # the labels are aligned by the loss, as CTC does: a mean over samples
    return ((labels[..., 1:] if predicts_next(output) else labels) != IGNORED).sum()
