"""Tests what the loss inside a Hugging Face model consists of: which labels it averages over, and auxiliary terms."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.job.hugging_face_labels import IGNORED, field_of, labels_of, predicts_next

_RELATIVE_TOLERANCE = 1e-4


def returns_hugging_face_loss(output: Any, micro: MicroBatch) -> bool:
    """True if the output has a scalar `loss`, and the inputs have the labels that it was computed from."""
    loss = field_of(output, "loss")
    return (
        isinstance(loss, Tensor) and loss.dim() == 0 and isinstance(micro.inputs, Mapping) and "labels" in micro.inputs
    )


def auxiliary_fields(output: Any) -> list[str]:
    """Names of the output's fields that hold auxiliary losses of experts."""
    names = list(output) if isinstance(output, Mapping) else []
    return [name for name in names if str(name).endswith(("aux_loss", "z_loss")) and field_of(output, name) is not None]


def refuse_other_labels(output: Any, micro: MicroBatch) -> str:
    """Raise OnecurveError if `output.loss` is the mean over other labels than `onecurve.loss.hugging_face` counts.

    Returns a note if it is a mean over neither all labels nor all but the first ones.
    """
    means = _label_means(output, micro)
    if means is None or auxiliary_fields(output):
        return ""
    loss, counted, other = float(field_of(output, "loss")), *means
    if _close(loss, counted) and abs(loss - counted) <= abs(loss - other):
        return ""
    kind, other_kind = ("next tokens", "all labels") if predicts_next(output) else ("all labels", "next tokens")
    if _close(loss, other):
        raise OnecurveError(
            f"loss 'hugging_face': the output is a {type(output).__name__}, for which the loss should be the mean over "
            f"{kind}, {counted:.6g}, but output.loss is {loss:.6g}, the mean over {other_kind}; return "
            "onecurve.Weighted(output.loss * n, n) from your own loss, with the number n of labels in the mean"
        )
    return (
        f"loss 'hugging_face': output.loss is {loss:.6g}, but the cross-entropy of output.logits is {counted:.6g}, so "
        f"it could not be verified that it is a mean over {kind}; it was tested only that the loss of one batch equals "
        "that of its parts"
    )


def refuse_other_auxiliary(outputs: Sequence[Any], micros: Sequence[MicroBatch]) -> None:
    """Raise OnecurveError unless every `output.loss` is the mean over its labels + a constant × `output.aux_loss`."""
    coefficient: float | None = None
    for output, micro in zip(outputs, micros, strict=True):
        means, extra = _label_means(output, micro), auxiliary_fields(output)
        if means is None or extra != ["aux_loss"]:
            raise OnecurveError(
                "loss 'hugging_face_local_auxiliary': it needs an output with logits and aux_loss, and labels of the "
                f"same shape; the output is a {type(output).__name__}. Return onecurve.Weighted(sum, count) from your "
                "own loss"
            )
        loss, auxiliary = float(field_of(output, "loss")), float(field_of(output, "aux_loss"))
        if coefficient is None:
            coefficient = (loss - means[0]) / auxiliary if auxiliary else 0.0
        if not _close(loss, means[0] + coefficient * auxiliary):
            raise OnecurveError(
                f"loss 'hugging_face_local_auxiliary': output.loss is {loss:.6g}, which is not the mean over its "
                f"labels ({means[0]:.6g}) + {coefficient:.6g} × output.aux_loss ({auxiliary:.6g}); return "
                "onecurve.Weighted(sum, count) from your own loss"
            )


def _label_means(output: Any, micro: MicroBatch) -> tuple[float, float] | None:
    """Return the cross-entropy over the labels that are counted, and over the other choice; None if it is unknown."""
    logits, labels = field_of(output, "logits"), labels_of(micro.target, micro.inputs)
    if not isinstance(logits, Tensor) or labels.dim() != 2 or labels.is_floating_point():
        return None
    if logits.shape[:-1] != labels.shape:
        return None
    every = _mean(logits, labels)
    following = _mean(logits[:, :-1], labels[:, 1:])
    return (following, every) if predicts_next(output) else (every, following)


def _mean(logits_BTV: Tensor, labels_BT: Tensor) -> float:
    logits = logits_BTV.flatten(0, 1)
    logits = logits if logits.dtype.itemsize >= 4 else logits.float()
    return float(F.cross_entropy(logits, labels_BT.flatten(), ignore_index=IGNORED))


def _close(one: float, other: float) -> bool:
    return abs(one - other) <= _RELATIVE_TOLERANCE * max(abs(one), abs(other))
