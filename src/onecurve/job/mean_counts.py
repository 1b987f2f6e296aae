"""The number that each loss function of torch divides by when it is called with a mean.

For class indices it is the sum of the weights of the targets that are not ignored, which depends on the values of the
batch. For the others it is a number of elements or of samples, which follows from shapes.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn._reduction import legacy_get_string

Arguments = Mapping[str, Any]
Count = Tensor | int

_DEFAULT_IGNORED = -100


def bound_arguments(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Arguments) -> dict[str, Any] | None:
    """The arguments by name of a call of a known function with a mean; None for every other call."""
    signature = _SIGNATURES.get(function)
    if signature is None:
        return None
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:  # the call itself raises it for the user
        return None
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    if arguments.get("size_average") is not None or arguments.get("reduce") is not None:
        arguments["reduction"] = legacy_get_string(arguments["size_average"], arguments["reduce"], emit_warning=False)
        arguments |= {"size_average": None, "reduce": None}
    means = ("mean", "batchmean") if function is F.kl_div else ("mean",)
    return arguments if arguments["reduction"] in means else None


def mean_count(function: Callable[..., Any], arguments: Arguments) -> Count | None:
    """The number that this mean was divided by, without waiting for the device; None if it is not known."""
    weight = arguments.get("weight")
    if isinstance(weight, Tensor) and weight.requires_grad:
        return None  # the mean has a gradient with respect to its own denominator
    return _COUNTS[function](arguments)


def has_class_weights(function: Callable[..., Any], arguments: Arguments) -> bool:
    """True if the count is a sum of class weights, which can be 0 although there are targets."""
    return function in _OF_CLASSES and arguments["weight"] is not None


def name_of(function: Callable[..., Any]) -> str:
    """The function as a user writes it."""
    return f"F.{function.__name__}"


def _of_classes(arguments: Arguments) -> Count:
    """cross_entropy and nll_loss: input [C] or [N, C, …], target [] or [N, …] with indices, or probabilities."""
    target, weight, ignored = arguments["target"], arguments["weight"], arguments["ignore_index"]
    if target.is_floating_point():  # probabilities, for which weights do not enter the denominator
        shape = arguments["input"].shape if "linear_weight" not in arguments else target.shape
        return int(math.prod(shape) // shape[0 if len(shape) == 1 else 1])
    kept = target != (_DEFAULT_IGNORED if ignored is None else ignored)
    if weight is None:
        return Tensor.sum(kept)
    wide = weight.detach().to(torch.promote_types(weight.dtype, torch.float32))
    return Tensor.sum(wide[torch.where(kept, target, 0)] * kept)


def _of_elements(*names: str) -> Callable[[Arguments], Count | None]:
    def count(arguments: Arguments) -> Count | None:
        weight = arguments.get("weight")
        return Tensor.sum(weight.detach()) if weight is not None else _elements(*(arguments[name] for name in names))

    return count


def _of_inputs(arguments: Arguments) -> Count:
    """Elements of the input: weights do not enter the denominator."""
    return int(arguments["input"].numel())


def _kl_div(arguments: Arguments) -> Count:
    if arguments["reduction"] == "batchmean":
        return int(arguments["input"].shape[0]) if arguments["input"].dim() else 1
    return _elements(arguments["input"], arguments["target"])


def _elements(*tensors: Tensor) -> int:
    return math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))  # type: ignore[no-untyped-call]


def _of_rows(name: str) -> Callable[[Arguments], Count]:
    """All dimensions but the last one."""
    return lambda arguments: int(math.prod(arguments[name].shape[:-1]))


def _ctc(arguments: Arguments) -> Count:
    """Each sample's loss is divided by the length of its target, and the mean of these is over the samples."""
    log_probs = arguments["log_probs"]
    return int(log_probs.shape[1]) if log_probs.dim() == 3 else 1


_OF_CLASSES: set[Callable[..., Any]] = {F.cross_entropy, F.nll_loss, F.linear_cross_entropy}

_COUNTS: dict[Callable[..., Any], Callable[[Arguments], Count | None]] = {
    **dict.fromkeys(_OF_CLASSES, _of_classes),
    F.mse_loss: _of_elements("input", "target"),
    F.l1_loss: _of_elements("input", "target"),
    F.smooth_l1_loss: _of_elements("input", "target"),
    F.poisson_nll_loss: _of_elements("input", "target"),
    F.gaussian_nll_loss: _of_elements("input", "target"),
    F.soft_margin_loss: _of_elements("input", "target"),
    F.hinge_embedding_loss: _of_elements("input", "target"),
    F.margin_ranking_loss: _of_elements("input1", "input2", "target"),
    F.huber_loss: _of_inputs,
    F.binary_cross_entropy: _of_inputs,
    F.binary_cross_entropy_with_logits: _of_inputs,
    F.kl_div: _kl_div,
    F.multi_margin_loss: _of_rows("input"),
    F.multilabel_margin_loss: _of_rows("input"),
    F.multilabel_soft_margin_loss: _of_rows("input"),
    F.cosine_embedding_loss: _of_rows("input1"),
    F.triplet_margin_loss: _of_rows("anchor"),
    F.ctc_loss: _ctc,
}

_SIGNATURES = {function: inspect.signature(function) for function in _COUNTS}
