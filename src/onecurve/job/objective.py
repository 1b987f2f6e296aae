"""From the user's loss to a sum and its count, and the test that a mean really is a mean over samples."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.job.batch import MicroBatch, Objective
from onecurve.job.job import Loss
from onecurve.job.weighted import Weighted

_TOLERANCE = {torch.float64: 1e-10}
# Outputs computed in batches of other sizes differ in their last digits; a wrong mean differs by far more.
_FLOAT32_TOLERANCE = 1e-5
_TRIALS = 3


def objective_of(loss: Loss) -> Objective:
    """The loss as (output, micro-batch) → Weighted."""

    def objective(output: Any, micro: MicroBatch) -> Weighted:
        return weigh(_call(loss, output, micro), micro.samples)

    return objective


def weigh(value: Any, samples: int, name: str = "loss") -> Weighted:
    """One of the three forms a loss may have, as a sum and its count."""
    if isinstance(value, Weighted):
        total = torch.as_tensor(value.sum)
        if total.dim() != 0:
            raise OnecurveError(
                f"{name}: Weighted(sum, …) needs a single number, its sum has shape {list(total.shape)}"
            )
        return Weighted(total, value.count)
    if isinstance(value, Tensor) and value.dim() == 0:
        return Weighted(value * samples, samples)
    if isinstance(value, Tensor) and tuple(value.shape) == (samples,):
        return Weighted(value.sum(), samples)
    shape = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise OnecurveError(
        f"{name}: it returned {shape} for {samples} samples; return one value per sample (shape [{samples}]), "
        "onecurve.Weighted(sum, count), or a scalar mean over samples"
    )


def refuse_non_mean_scalar(
    loss: Loss,
    infer: Callable[[MicroBatch], Any],
    read: Callable[[int, int], MicroBatch],
    micro: MicroBatch,
    output: Any,
) -> None:
    """Test a loss that returns a scalar: a whole micro-batch against two unequal parts of it.

    `infer` is the model in evaluation mode, `read(begin, end)` collates the samples at these positions; `output` is
    the model's for the first micro-batch, whose loss tells the form.
    """
    size = micro.samples
    first_form = _call(loss, output, micro)
    weigh(first_form, size)
    if size == 1 or isinstance(first_form, Weighted) or first_form.dim() != 0:
        return
    for trial in range(_TRIALS):
        begin, middle, end = trial * size, trial * size + max(1, size // 3), (trial + 1) * size
        at_once, tolerance = _sum_of(loss, infer, read(begin, end))
        again, _ = _sum_of(loss, infer, read(begin, end))
        tolerance *= max(abs(at_once), 1e-300)
        if abs(at_once - again) > tolerance:
            raise OnecurveError(
                "loss: it returns a scalar, and the model draws random numbers in its forward, so it cannot be tested "
                "whether that is a mean over samples; return one value per sample, or onecurve.Weighted(sum, count)"
            )
        in_parts = _sum_of(loss, infer, read(begin, middle))[0] + _sum_of(loss, infer, read(middle, end))[0]
        if abs(at_once - in_parts) > tolerance:
            raise OnecurveError(
                f"loss: its scalar is not a mean over samples: {size} samples at once give {at_once / size:.6g}, "
                f"the same in parts of {middle - begin} and {end - middle} give {in_parts / size:.6g}. "
                "If it is a mean over something else (tokens without padding), return onecurve.Weighted(sum, count); "
                "if every sample's loss depends on the others in the batch (contrastive), it cannot be split"
            )


def _sum_of(loss: Loss, infer: Callable[[MicroBatch], Any], micro: MicroBatch) -> tuple[float, float]:
    """A scalar loss × samples, and how exact the model's output is. In float64 where the loss can be had so."""
    output = infer(micro)
    dtypes = [leaf.dtype for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    tolerance = max((_TOLERANCE.get(dtype, _FLOAT32_TOLERANCE) for dtype in dtypes), default=_FLOAT32_TOLERANCE)
    try:
        value = loss(pytree.tree_map(_double, output), pytree.tree_map(_double, micro.target))
    except Exception:  # class weights or a teacher in float32
        value = _call(loss, output, micro)
    assert isinstance(value, Tensor)
    return value.item() * micro.samples, tolerance


def _call(loss: Loss, output: Any, micro: MicroBatch) -> Any:
    try:
        return loss(output, micro.target)
    except OnecurveError:
        raise
    except Exception as error:
        raise UserCodeError(f"loss: it raised {type(error).__name__}: {error}") from error


def _double(leaf: Any) -> Any:
    return leaf.to(torch.float64) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
