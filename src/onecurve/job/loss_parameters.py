"""Refuses a loss that computes with parameters which are not the model's: nothing would train them."""

import functools
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Loss
from onecurve.job.objective import call_loss, loss_name
from onecurve.job.weighted import Weighted

_MAX_DEPTH = 4
"""Attributes of attributes that are searched for a parameter's name."""


def refuse_other_parameters(loss: Loss, output: Any, micro: MicroBatch, model: Iterable[Tensor]) -> None:
    """Raise OnecurveError if the gradient of the loss reaches a tensor besides the output that is none of the model.

    Args:
        loss: The user's loss.
        output: The model's output for the micro-batch. The graph behind it is not needed.
        micro: A micro-batch of few samples.
        model: The parameters of the model.
    """
    own: list[Tensor] = []

    def variable(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        own.append(leaf.detach().requires_grad_())
        return own[-1].clone()  # a loss may write into the output

    with torch.enable_grad():
        value = call_loss(loss, pytree.tree_map(variable, output), micro.target, micro.inputs)
        value = value.sum if isinstance(value, Weighted) else value
        if not isinstance(value, Tensor):
            return
        known = {id(tensor) for tensor in (*own, *model)}
        for leaf in _leaves(value):
            if id(leaf) not in known:
                raise OnecurveError(_text(loss, leaf))


def _leaves(value: Tensor) -> Iterator[Tensor]:
    """The tensors at which a graph ends."""
    if value.requires_grad and value.grad_fn is None:
        yield value
    stack, seen = [value.grad_fn], set[Any]()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            yield leaf
        stack.extend(following for following, _ in node.next_functions)


def _text(loss: Loss, leaf: Tensor) -> str:
    name = next(_names(loss, leaf, loss_name(loss).removeprefix("loss ").strip("'"), 0, set()), None)
    what = f"{name}, a parameter" if name is not None else "a parameter"
    return (
        f"{loss_name(loss)}: it computes with {what} of shape {list(leaf.shape)} that is not part of the trained model "
        "(it belongs to the loss, or to another construction of the model), so nothing would train it. Put it into "
        "the model, and let forward return what the loss needs of it. If it is not to be trained, call "
        "requires_grad_(False) on it"
    )


def _names(holder: Any, leaf: Tensor, path: str, depth: int, seen: set[int]) -> Iterator[str]:
    """Where a tensor is found from the loss: in modules, attributes, closures and the globals that its code names."""
    if holder is leaf:
        yield path
    if depth > _MAX_DEPTH or id(holder) in seen:
        return
    seen.add(id(holder))
    if isinstance(holder, nn.Module):
        for name, parameter in holder.named_parameters():
            if parameter is leaf:
                yield f"{path}.{name}"
    for name, value in _held(holder):
        if isinstance(value, Tensor | nn.Module | FunctionType | MethodType | functools.partial | dict | list | tuple):
            yield from _names(
                value, leaf, name if isinstance(holder, FunctionType) else f"{path}{name}", depth + 1, seen
            )


def _held(holder: Any) -> list[tuple[str, Any]]:
    """What an object holds, with the text that leads there."""
    if isinstance(holder, dict):
        return [(f"[{key!r}]", value) for key, value in holder.items()]
    if isinstance(holder, list | tuple):
        return [(f"[{number}]", value) for number, value in enumerate(holder)]
    if isinstance(holder, MethodType):
        return [("", holder.__self__), ("", holder.__func__)]
    if isinstance(holder, functools.partial):
        return [("", holder.func), *((f".{name}", value) for name, value in holder.keywords.items())]
    if isinstance(holder, FunctionType):
        cells = zip(holder.__code__.co_freevars, holder.__closure__ or (), strict=True)
        held = [(name, cell.cell_contents) for name, cell in cells if _is_filled(cell)]
        named = [(name, holder.__globals__[name]) for name in holder.__code__.co_names if name in holder.__globals__]
        return [*held, *named]
    return [(f".{name}", value) for name, value in getattr(holder, "__dict__", {}).items()]


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
