"""The value of a loss for one micro-batch, in float64, in a form that can be compared with the values of its parts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.describe.scalar_form import ScalarForm
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Loss
from onecurve.job.mean_calls import MeanCalls
from onecurve.job.objective import call_loss, weigh
from onecurve.job.scalar_form import weigh_scalar
from onecurve.job.weighted import Weighted

Form = Literal["scalar", "per sample", "weighted"]

# The batch size changes the last digits of a model's output; a loss that cannot be split differs by far more.
_RELATIVE_TOLERANCE = {torch.float64: 1e-10}
_FLOAT32_RELATIVE_TOLERANCE = 1e-5
_PER_SAMPLE_FACTOR = 10.0
"""The rounding of a single sample is larger than that of a sum, in which errors cancel."""
_MAX_FLOAT64_BYTES = 2**30
"""Larger outputs are not converted to float64, because the copy may not fit into the device's memory."""


@dataclass(frozen=True)
class LossValue:
    """What a loss returned for the samples of one or several micro-batches."""

    form: Form
    terms: Tensor
    """One value per sample in the form "per sample", otherwise the sum alone; float64, on the CPU."""
    count: float
    tolerance: float
    """Relative difference that rounding explains."""
    counted: "LossValue | None" = None
    """A scalar that is the mean of a loss function of torch, as the sum and the count of that mean."""
    functions: tuple[str, ...] = ()
    """Loss functions of torch that a scalar loss has called with a mean."""
    per_sample: tuple[float, ...] = ()
    """What each of them divided by, divided by the number of samples."""

    @property
    def mean(self) -> float:
        return float(self.terms.sum()) / self.count if self.count else float("nan")


def evaluate(loss: Loss, output: Any, micro: MicroBatch, form: Form | None = None) -> LossValue:
    """Call the loss, on float64 tensors if it accepts them. `form` is that of a larger micro-batch, if it is known."""
    value, calls = _call_in_float64(loss, output, micro)
    weighted = weigh(value, micro.samples)
    if isinstance(value, Weighted):
        actual: Form = "weighted"
    elif value.dim() == 1 or (form == "per sample" and micro.samples == 1):  # some losses squeeze a batch of one
        actual = "per sample"
    else:
        actual = "scalar"
    tolerance = _tolerance(output, value) * (_PER_SAMPLE_FACTOR if actual == "per sample" else 1.0)
    terms = value if actual == "per sample" else weighted.sum
    found = LossValue(form=actual, terms=_on_host(terms), count=float(weighted.count), tolerance=tolerance)
    if actual != "scalar":
        return found
    counted = None
    if calls.count_of(value) is not None:
        by_count = weigh_scalar(value, calls, micro.samples, ScalarForm(counted=True))
        counted = LossValue(form=actual, terms=_on_host(by_count.sum), count=float(by_count.count), tolerance=tolerance)
    return replace(
        found,
        counted=counted,
        functions=tuple(call.name for call in calls.calls),
        per_sample=tuple(math.nan if c.count is None else float(c.count) / micro.samples for c in calls.calls),
    )


def _on_host(terms: Any) -> Tensor:
    return torch.as_tensor(terms).detach().to("cpu", torch.float64).reshape(-1)


def join(parts: Sequence[LossValue]) -> LossValue:
    """Return what the loss of the whole must be if it can be split: values per sample in order, otherwise sums."""
    terms = [part.terms for part in parts]
    form = parts[0].form
    joined = torch.cat(terms) if form == "per sample" else torch.stack(terms).sum(0)
    return LossValue(
        form=form,
        terms=joined,
        count=sum(part.count for part in parts),
        tolerance=max(part.tolerance for part in parts),
    )


def difference(one: LossValue, other: LossValue) -> float:
    """Return the largest relative difference of the terms and of the counts. Terms that are NaN in both are equal."""
    if one.terms.shape != other.terms.shape:
        return float("inf")
    scale = max(float(value.terms.abs().nan_to_num(0.0).max()) for value in (one, other))
    errors = (one.terms - other.terms).abs()
    errors[(one.terms.isnan() & other.terms.isnan()) | (one.terms == other.terms)] = 0.0
    of_terms = float(errors.nan_to_num(float("inf")).max()) / max(scale, 1e-300)
    of_counts = abs(one.count - other.count) / max(abs(one.count), abs(other.count), 1e-300)
    return max(of_terms, of_counts)


def _call_in_float64(loss: Loss, output: Any, micro: MicroBatch) -> tuple[Any, MeanCalls]:
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    if sum(8 * leaf.numel() for leaf in leaves) <= _MAX_FLOAT64_BYTES:
        try:
            target = pytree.tree_map(_to_float64, micro.target)
            with MeanCalls() as calls:
                return call_loss(loss, pytree.tree_map(_to_float64, output), target, micro.inputs), calls
        except Exception:  # user code: the loss may contain float32 tensors: class weights, or a teacher model
            pass
    with MeanCalls() as calls:
        return call_loss(loss, output, micro.target, micro.inputs), calls


def _to_float64(leaf: Any) -> Any:
    return leaf.to(torch.float64) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _tolerance(output: Any, value: Any) -> float:
    """Return the relative tolerance by the dtypes of the output and of scalars that were rounded to 16 bits."""
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    tolerances = [_RELATIVE_TOLERANCE.get(leaf.dtype, _FLOAT32_RELATIVE_TOLERANCE) for leaf in leaves]
    returned = value.sum if isinstance(value, Weighted) else value
    rounded = [*(leaf for leaf in leaves if leaf.dim() < 2), *([returned] if isinstance(returned, Tensor) else [])]
    of_rounding = [2 * torch.finfo(leaf.dtype).eps for leaf in rounded if leaf.is_floating_point()]
    return max([*tolerances, *of_rounding], default=_FLOAT32_RELATIVE_TOLERANCE)
