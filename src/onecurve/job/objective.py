"""Turns the user's loss into a sum and its count, and tests that a scalar loss is a mean over samples."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.job.batch import MicroBatch, Objective
from onecurve.job.job import Loss
from onecurve.job.weighted import Weighted

_RELATIVE_TOLERANCE = {torch.float64: 1e-10}
# The batch size changes the last digits of a model's output; a scalar that is not a mean differs by far more.
_FLOAT32_RELATIVE_TOLERANCE = 1e-5
_TRIALS = 3


def objective_of(loss: Loss) -> Objective:
    """The user's loss as a function (output, micro-batch) → Weighted."""

    def objective(output: Any, micro: MicroBatch) -> Weighted:
        return weigh(_call(loss, output, micro), micro.samples)

    return objective


def weigh(value: Any, samples: int, name: str = "loss") -> Weighted:
    """Convert the value of a loss or metric to a sum and its count.

    `value` is a Weighted, one value per sample, or a scalar mean over `samples` samples; `name` is used in errors.
    """
    if isinstance(value, Weighted):
        total = torch.as_tensor(value.sum)
        if total.dim() != 0:
            raise OnecurveError(
                f"{name}: the sum of a Weighted(sum, count) must be a scalar, got shape {list(total.shape)}; "
                "use Weighted(values.sum(), count)"
            )
        return Weighted(total, value.count)
    if isinstance(value, Tensor) and value.dim() == 0:
        return Weighted(value * samples, samples)
    if isinstance(value, Tensor) and tuple(value.shape) == (samples,):
        return Weighted(value.sum(), samples)
    actual = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise OnecurveError(
        f"{name}: it returned {actual} for {samples} samples; return one value per sample (shape [{samples}]), "
        "onecurve.Weighted(sum, count), or a scalar mean over samples"
    )


def refuse_non_mean_scalar(
    loss: Loss,
    infer: Callable[[MicroBatch], Any],
    read: Callable[[int, int], MicroBatch],
    micro: MicroBatch,
    output: Any,
) -> None:
    """Raise OnecurveError if the loss returns a scalar that is not a mean over samples.

    The test compares the loss of a micro-batch with the losses of two parts of unequal size. Losses that return one
    value per sample or a Weighted need no test, only the right shape.

    Args:
        loss: The user's loss.
        infer: The model in evaluation mode.
        read: `read(begin, end)` reads and collates the samples at these positions of the sample order.
        micro: The first micro-batch; its loss shows whether the loss returns a scalar.
        output: The model's output for `micro`.
    """
    size = micro.samples
    first_value = _call(loss, output, micro)
    weigh(first_value, size)
    if size == 1 or isinstance(first_value, Weighted) or first_value.dim() != 0:
        return
    for trial in range(_TRIALS):
        begin, middle, end = trial * size, trial * size + max(1, size // 3), (trial + 1) * size
        full_sum, tolerance = _loss_sum(loss, infer, read(begin, end))
        repeated_sum, _ = _loss_sum(loss, infer, read(begin, end))
        tolerance *= max(abs(full_sum), 1e-300)
        if abs(full_sum - repeated_sum) > tolerance:
            raise OnecurveError(
                "loss: it returns a scalar, and the model draws random numbers in its forward, so it cannot be tested "
                "whether that scalar is a mean over samples; return one value per sample, or "
                "onecurve.Weighted(sum, count)"
            )
        sum_of_parts = _loss_sum(loss, infer, read(begin, middle))[0] + _loss_sum(loss, infer, read(middle, end))[0]
        if abs(full_sum - sum_of_parts) > tolerance:
            raise OnecurveError(
                f"loss: its scalar is not a mean over samples: {size} samples at once give {full_sum / size:.6g}, "
                f"the same samples in parts of {middle - begin} and {end - middle} give {sum_of_parts / size:.6g}. "
                "If it is a mean over something else (tokens without padding), return onecurve.Weighted(sum, count); "
                "if every sample's loss depends on the others in the batch (contrastive), it cannot be split"
            )


def _loss_sum(loss: Loss, infer: Callable[[MicroBatch], Any], micro: MicroBatch) -> tuple[float, float]:
    """Return (scalar loss × samples, relative tolerance of the output's dtype).

    The loss is computed in float64 if it accepts float64 tensors.
    """
    output = infer(micro)
    dtypes = [leaf.dtype for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    tolerance = max(
        (_RELATIVE_TOLERANCE.get(dtype, _FLOAT32_RELATIVE_TOLERANCE) for dtype in dtypes),
        default=_FLOAT32_RELATIVE_TOLERANCE,
    )
    try:
        value = loss(pytree.tree_map(_to_float64, output), pytree.tree_map(_to_float64, micro.target))
    except Exception:  # user code: the loss may contain float32 tensors: class weights, or a teacher model
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


def _to_float64(leaf: Any) -> Any:
    return leaf.to(torch.float64) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
