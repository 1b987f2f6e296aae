"""Turns the user's loss into a sum and its count."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.job.batch import MicroBatch, Objective
from onecurve.job.job import Loss
from onecurve.job.loss import TAKES_INPUTS
from onecurve.job.weighted import Weighted


def objective_of(loss: Loss) -> Objective:
    """The user's loss as a function (output, micro-batch) → Weighted."""

    def objective(output: Any, micro: MicroBatch) -> Weighted:
        value = call_loss(loss, output, micro.target, micro.inputs)
        weighted = weigh(value, micro.samples or 1)
        if torch.is_grad_enabled() and not weighted.sum.requires_grad:
            _refuse_lost_gradient(output)
        if micro.samples:
            return weighted
        return Weighted(0 * weighted.sum, 0 * weighted.count)  # a filler, which does not count

    return objective


def _refuse_lost_gradient(output: Any) -> None:
    """Refuse a loss without a gradient if the model's output has one."""
    leaves = pytree.tree_leaves(list(output.values()) if isinstance(output, Mapping) else output)
    if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
        raise OnecurveError(
            "loss: what it returned has no gradient, although the model's output has one; compute it with operations "
            "on tensors, without .item(), .detach(), .data, .numpy(), argmax or torch.no_grad()"
        )


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
    mean = ", or a scalar mean over samples" if name.startswith("loss") else ""
    raise OnecurveError(
        f"{name}: it returned {actual} for {samples} samples; return one value per sample (shape [{samples}]), or "
        f"onecurve.Weighted(sum, count){mean}"
    )


def call_loss(loss: Loss, output: Any, target: Any, inputs: Any) -> Any:
    """Call the user's loss; an exception in it becomes a UserCodeError."""
    try:
        if any(loss is known for known in TAKES_INPUTS):
            return loss(output, target, inputs)  # type: ignore[call-arg]
        return loss(output, target)
    except OnecurveError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"loss: it raised {type(error).__name__}: {error} (the model's output: {_description(output)})"
        ) from error


def _description(value: Any) -> str:
    """Describe a model's output: the types of its parts, two levels deep."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, Mapping):
        return f"{type(value).__name__} with {', '.join(map(str, value)) or 'no key'}"
    if isinstance(value, list | tuple) and value:
        return f"{type(value).__name__} of {len(value)}, the first is {_description(value[0])}"
    return type(value).__name__
