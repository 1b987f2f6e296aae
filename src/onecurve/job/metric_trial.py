"""Tests that a metric can be split: that the sums of the parts of a batch add up to those of the whole batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.job.evaluation_metrics import EvaluationMetric
from onecurve.job.loss_trial import LossTrial, shapes_of

_TRIALS = 3
"""Rounding may change a prediction that is next to a threshold, but hardly three times in a row. Counts do not depend
on it; if they differ where micro-batches are padded differently, once is enough."""
_RELATIVE_TOLERANCE = 1e-5
_ABSOLUTE_TOLERANCE = 1e-6
"""In units of the largest of a metric's sums: a sum whose terms cancel is mostly rounding."""


def refuse_unsplittable_metrics(trial: LossTrial, metrics: Sequence[EvaluationMetric], first: MicroBatch) -> str:
    """Raise OnecurveError if a metric depends on how samples are cut into micro-batches.

    All ranks of the model must call it. Models in 16 bits are not tested: their rounding changes predictions.

    Args:
        trial: The model, in evaluation mode.
        metrics: The job's metrics.
        first: The micro-batch at position 0.

    Returns:
        What could not be tested and why, as a note for the user; empty if everything was tested.
    """
    if not metrics or first.samples < 2 or trial.low_precision is not None:
        return ""
    suspects, goes_on = list(metrics), True
    for number in range(_TRIALS):
        micros = trial.whole_and_parts(first, number)
        padded = len({shapes_of(micro) for micro in micros}) > 1
        if not (goes_on or padded):
            continue
        outputs = [trial.output(micro, number) for micro in micros]
        judged = metrics if trial.judges else ()
        found = [metric for metric in judged if _differs(*_whole_and_parts(metric, outputs, micros))]
        counting_padding = [metric for metric in found if padded and _counts_differ(metric, outputs, micros)]
        suspects = [metric for metric in suspects if metric in found]
        goes_on = trial.on_any_rank(bool(suspects))
        if trial.on_any_rank(bool(counting_padding)):
            suspects, goes_on = counting_padding, True
            break
    if not goes_on:
        return ""
    repeated = trial.repeated(micros[0])
    if not trial.judges:
        return ""
    random = [
        metric
        for metric in suspects
        if any(_differs(_sums(metric, outputs[0], micros[0]), _sums(metric, other, micros[0])) for other in repeated)
    ]
    if not random:
        raise OnecurveError(_refusal(suspects[0], outputs, micros))
    names = ", ".join(metric.name for metric in random)
    return f"metric {names}: the model draws random numbers in its forward, so it was not tested whether it adds up"


def _whole_and_parts(metric: EvaluationMetric, outputs: list[Any], micros: list[MicroBatch]) -> tuple[Tensor, Tensor]:
    whole, *parts = [_sums(metric, output, micro) for output, micro in zip(outputs, micros, strict=True)]
    if len({part.shape for part in (whole, *parts)}) > 1:
        raise OnecurveError(
            f"metric {metric.name!r}: the vector that its sums function returns has shape {list(whole.shape)} for "
            f"{micros[0].samples} samples and {list(parts[0].shape)} for {micros[1].samples}; return a vector of fixed "
            "length, which can be added up"
        )
    return whole, torch.stack(parts).sum(0)


def _sums(metric: EvaluationMetric, output: Any, micro: MicroBatch) -> Tensor:
    return metric.sums(output, micro).to("cpu", torch.float64)


def _counts_differ(metric: EvaluationMetric, outputs: list[Any], micros: list[MicroBatch]) -> bool:
    whole, joined = _whole_and_parts(metric, outputs, micros)
    return metric.is_mean and float(whole[1]) != float(joined[1])


def _differs(whole: Tensor, joined: Tensor) -> bool:
    largest = max(float(sums.abs().nan_to_num(0.0).max()) for sums in (whole, joined)) if whole.numel() else 0.0
    return not torch.allclose(
        whole, joined, rtol=_RELATIVE_TOLERANCE, atol=_ABSOLUTE_TOLERANCE * largest, equal_nan=True
    )


def _refusal(metric: EvaluationMetric, outputs: list[Any], micros: list[MicroBatch]) -> str:
    whole, joined = _whole_and_parts(metric, outputs, micros)
    size, first, second = (micro.samples for micro in micros)
    if metric.is_mean:
        at_once, in_parts = (f"sum {sums[0]:.6g} and count {sums[1]:g}" for sums in (whole, joined))
    else:
        worst = int((whole - joined).abs().nan_to_num(float("inf")).argmax())
        at_once, in_parts = (f"{sums.flatten()[worst]:.6g} in element {worst} of its sums" for sums in (whole, joined))
    return (
        f"metric {metric.name!r}: it does not add up: {size} samples at once give {at_once}, the same samples in parts "
        f"of {first} and {second} together give {in_parts}, so its value would depend on the plan. Return one value "
        "per sample, or onecurve.Weighted(sum, count) with a sum over items (not their mean) and their number. Leave "
        "out padding in both, because its length depends on the micro-batch"
    )
