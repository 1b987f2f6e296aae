"""Turns the user's loss into a sum and its count."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.scalar_form import ScalarForm
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Loss
from onecurve.job.loss import TAKES_INPUTS
from onecurve.job.mean_calls import MeanCalls
from onecurve.job.scalar_form import excess, weigh_scalar
from onecurve.job.weighted import Weighted


class LossObjective:
    """The user's loss as a function (output, micro-batch) → Weighted."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self.form: ScalarForm | None = None
        """What a scalar of this loss means; None until the trial before training has found it."""
        self._names: list[str] = []
        self._refused: Tensor | float = 0.0

    def __call__(self, output: Any, micro: MicroBatch) -> Weighted:
        with MeanCalls() as calls:
            value = call_loss(self._loss, output, micro.target, micro.inputs)
        samples = micro.samples or 1
        if isinstance(value, Tensor) and value.dim() == 0:
            weighted = weigh_scalar(value, calls, samples, self.form)
            weighted = Weighted(weighted.sum, weighted.count + self._excess(value, calls, samples))
        else:
            weighted = weigh(value, samples)
        if torch.is_grad_enabled() and not weighted.sum.requires_grad:
            _refuse_lost_gradient(output)
        if micro.samples:
            return weighted
        return Weighted(0 * weighted.sum, 0.0)  # a filler, which does not count

    def set_form(self, form: ScalarForm) -> None:
        self.form = form

    @property
    def refusal(self) -> str:
        """What to raise when a count is `REFUSED`."""
        return uneven_text(self._loss, self._names)

    def _excess(self, value: Tensor, calls: MeanCalls, samples: int) -> Tensor | float:
        """0, or infinite if this micro-batch or an earlier one of the training is refused: the device also skips the
        steps that it computes before the host has read of the first one."""
        self._names = [call.name for call in calls.calls]
        own = excess(value, calls, samples, self.form)
        if not torch.is_grad_enabled():
            return own
        self._refused = self._refused + own
        return self._refused


def objective_of(loss: Loss) -> LossObjective:
    """The user's loss as a function (output, micro-batch) → Weighted."""
    return LossObjective(loss)


def uneven_text(loss: Loss, functions: Sequence[str]) -> str:
    """The refusal of a scalar whose means no longer have the counts that they had at first."""
    names = ", ".join(dict.fromkeys(functions)) or "a loss function of torch"
    return (
        f"{loss_name(loss)}: its scalar is not a mean over samples: it contains the mean of {names}, and the number "
        "which that divides by (targets that are not ignored, the sum of their class weights, selected elements) is "
        "not the same for every sample. The mean of a batch then depends on how the batch is split. Return "
        "onecurve.Weighted(sum, count), with all terms as sums over the same items, or compute the terms with "
        "reduction='none' and return one value per sample"
    )


def loss_name(loss: Loss) -> str:
    """The loss as error messages name it."""
    return f"loss {getattr(loss, '__qualname__', type(loss).__qualname__)!r}"


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
