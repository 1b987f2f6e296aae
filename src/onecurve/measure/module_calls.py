"""How a model calls its modules."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


@dataclass(frozen=True)
class ModuleCall:
    """How a module was called by the model."""

    name: str
    module: nn.Module
    arguments: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None

    @property
    def given(self) -> Tensor | None:
        """The activation it works on: its first tensor."""
        leaves = pytree.tree_leaves((self.arguments, self.kwargs))
        return next((each for each in leaves if isinstance(each, Tensor)), None)


def record_calls(module: nn.Module, forward: Callable[[], object]) -> list[ModuleCall]:
    """The calls of all modules in a forward, in order."""
    calls: list[ModuleCall] = []
    begun: list[ModuleCall] = []

    def begin(name: str) -> Callable[..., None]:
        return lambda module, *given: begun.append(ModuleCall(name, module, *snapshot(given)))

    def end(_: nn.Module, __: Any, output: Any) -> None:
        calls.append(replace(begun.pop(), output=output))

    handles = []
    for name, each in module.named_modules():
        handles.append(each.register_forward_pre_hook(begin(name), with_kwargs=True))
        handles.append(each.register_forward_hook(end))
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def snapshot(values: Any) -> Any:
    """Arguments as they are now: a block may write into them (a key-value cache)."""

    def copied(leaf: Any) -> Any:
        try:
            return leaf if isinstance(leaf, Tensor) else copy.deepcopy(leaf)
        except Exception:
            return leaf

    return pytree.tree_map(copied, values)


@dataclass(frozen=True)
class ModuleKind:
    """Modules of one class and size that were given the same sizes."""

    first: ModuleCall
    names: list[str]


@contextmanager
def run_one_of_each_kind(modules: Mapping[str, nn.Module]) -> Iterator[dict[object, ModuleKind]]:
    """On fake tensors: of modules that are alike the first runs, and the others return tensors in the shape of its."""
    kinds: dict[object, ModuleKind] = {}
    before = {name: module.__dict__.get("forward") for name, module in modules.items()}

    def once(name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        sizes = tuple((each, tuple(parameter.shape)) for each, parameter in module.named_parameters())
        settings = tuple(str(_settings(each)) for each in module.modules())

        def run(*arguments: Any, **kwargs: Any) -> Any:
            leaves = pytree.tree_leaves((arguments, kwargs))
            given = tuple(map(_size, leaves))
            key = type(module), sizes, settings, given
            if key in kinds:
                kinds[key].names.append(name)
                return pytree.tree_map(_another, kinds[key].first.output)
            *given_then, named_then = snapshot((*arguments, kwargs))
            output = forward(*arguments, **kwargs)
            kinds[key] = ModuleKind(ModuleCall(name, module, tuple(given_then), named_then, output), [name])
            return output

        return run

    try:
        for name, module in modules.items():
            module.forward = once(name, module, module.forward)
        yield kinds
    finally:
        for name, own in before.items():
            if own is None:
                del modules[name].forward
            else:
                modules[name].forward = own


_PLAIN = (bool, int, float, str, type(None))


def _size(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape)
    return leaf if isinstance(leaf, _PLAIN) else type(leaf)


def _settings(module: nn.Module) -> dict[str, Any]:
    """What tells a module from another of its class: strides, numbers of heads. Its number among others does not."""
    return {
        name: value
        for name, value in module.__dict__.items()
        if isinstance(value, (*_PLAIN, tuple)) and not name.startswith("_") and name not in _NUMBERS
    }


_NUMBERS = ("layer_idx", "layer_id", "layer_number", "index", "training")
"""Attributes that differ between blocks which are alike all the same."""


def _another(leaf: Any) -> Any:
    return torch.empty_like(leaf) if isinstance(leaf, Tensor) else leaf
