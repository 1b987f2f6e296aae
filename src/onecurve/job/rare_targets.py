"""Tries a scalar loss with targets that the first samples do not show: ignored ones, rare classes, other masks.

A scalar that divides by the number of kept targets, or by the sum of their class weights, looks like a mean over
samples as long as these are the same for every sample. A true mean over samples stays one whatever the targets are.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError
from onecurve.describe.scalar_form import ScalarForm
from onecurve.device.compilation import uncompiled
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Loss
from onecurve.job.loss_value import LossValue, difference, evaluate, join
from onecurve.job.objective import loss_name
from onecurve.job.scalar_form import is_uneven

_IGNORED = -100
_MAX_BYTES = 2**28
"""Larger outputs are not tried: they are copied to the host."""
_MAX_CLASS_TRIALS = 50
_TOLERANCE_FACTOR = 10.0


def refuse_rare_targets(
    loss: Loss,
    output: Any,
    micro: MicroBatch,
    form: ScalarForm,
    kept_state: Callable[[], AbstractContextManager[None]] = nullcontext,
    step: int = 0,
) -> None:
    """Raise OnecurveError if a scalar loss is no mean over samples once some targets are edited.

    `kept_state`: returns a context that restores the Python values that the loss changes. `step`: in an audit, the
    step that the micro-batch belongs to; then the loss is tried with its targets as they are.

    The loss runs on the host, because an index out of range would end a GPU's process. An edit that the loss does not
    accept shows nothing, and neither does one that each step would notice by itself.
    """
    leaves = pytree.tree_leaves((output, micro.target))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    size = micro.samples
    if any(not tensor.dim() or len(tensor) != size for tensor in tensors) or size < 2:
        return
    if len(tensors) < sum(leaf is not None for leaf in leaves) or sum(8 * t.numel() for t in tensors) > _MAX_BYTES:
        return
    output, target = pytree.tree_map(lambda leaf: None if leaf is None else leaf.detach().cpu(), (output, micro.target))
    with uncompiled():
        as_they_are = [(f"the targets of step {step}", target)] if step else []
        for what, edited in as_they_are or _edits(output, target, size):
            try:
                values = []
                for begin, end in ((0, size), (0, size // 2), (size // 2, size)):
                    with kept_state():
                        values.append(_value(loss, output, edited, begin, end))
            except Exception:  # user code: the loss may not accept such targets
                continue
            whole, *parts = values
            joined = join(parts)
            if not all(value.terms.isfinite().all() for value in values) or _is_noticed(values, form):
                continue
            if difference(whole, joined) > _TOLERANCE_FACTOR * whole.tolerance:
                raise OnecurveError(
                    f"{loss_name(loss)}: its scalar is not a mean over samples for all targets: with {what}, {size} "
                    f"samples at once give {whole.mean:.6g}, the same samples in parts of {size // 2} and "
                    f"{size - size // 2} give {joined.mean:.6g}. It divides by something that depends on the targets "
                    "(their number without ignored ones, the sum of class weights), so its mean would depend on how "
                    "the batch is split. Return onecurve.Weighted(sum, count), or one value per sample"
                )


def _value(loss: Loss, output: Any, target: Any, begin: int, end: int) -> LossValue:
    output, target = pytree.tree_map(lambda leaf: None if leaf is None else leaf[begin:end], (output, target))
    return evaluate(loss, output, MicroBatch(None, target, end - begin), "scalar")


def _is_noticed(values: list[LossValue], form: ScalarForm) -> bool:
    """True if a step with such targets would be refused by the counts of the means that the loss computes."""
    known = form.per_sample
    return known is not None and any(
        len(value.per_sample) == len(known) and is_uneven(value.per_sample, known) for value in values
    )


def _edits(output: Any, target: Any, size: int) -> Iterator[tuple[str, Any]]:
    """Descriptions and targets, edited in the last samples alone, so that the parts of the batch differ."""
    leaves, structure = pytree.tree_flatten(target)
    for number, leaf in enumerate(leaves):
        if leaf is None:
            continue
        for what, edited in _edits_of(leaf, output, size):
            yield what, pytree.tree_unflatten([*leaves[:number], edited, *leaves[number + 1 :]], structure)


def _edits_of(target: Tensor, output: Any, size: int) -> Iterator[tuple[str, Tensor]]:
    last = target[-1:]
    rest = target[: size - 1]
    if target.dtype == torch.bool or bool(((target == 0) | (target == 1)).all()):
        exchanged = torch.cat([rest, (1 - last.to(torch.int8)).to(target.dtype)])
        yield "some of the targets 0 and 1 exchanged in a test", exchanged
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        return
    part = torch.full_like(last, _IGNORED) if target.dtype != torch.uint8 else last
    if size - size // 2 == 1 and part[0].dim():  # of a part with one sample, something must be left
        part.view(-1)[: part.numel() // 2] = last.reshape(-1)[: part.numel() // 2]
    yield f"some targets set to {_IGNORED} in a test", torch.cat([rest, part])
    places = target[size - max(1, (size - size // 2) // 2) :]
    missing = sorted(set(range(_classes(output, target))) - set(target.flatten().tolist()))
    for begin in list(range(0, len(missing), places.numel()))[:_MAX_CLASS_TRIALS] if places.numel() else []:
        classes = torch.tensor(missing[begin : begin + places.numel()], dtype=target.dtype)
        edited = target.clone()
        rare = classes.repeat(-(-places.numel() // len(classes)))[: places.numel()].reshape(places.shape)
        edited[size - len(places) :] = rare
        yield f"some targets set to class {', '.join(map(str, classes[:3].tolist()))} in a test", edited


def _classes(output: Any, target: Tensor) -> int:
    """The number of classes of the output that belongs to a target of class indices; 0 if there is none."""
    for leaf in pytree.tree_leaves(output):
        if leaf is None or leaf.dim() != target.dim() + 1 or not leaf.is_floating_point():
            continue
        for dim in (1, leaf.dim() - 1):
            shape = [*leaf.shape[:dim], *leaf.shape[dim + 1 :]]
            if shape == list(target.shape) and int(target.max()) < leaf.shape[dim]:
                return int(leaf.shape[dim])
    return 0
