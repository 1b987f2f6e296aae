"""Records how a model calls its modules."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onecurve.model.object_copy import copy_sharing_tensors

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module by the model: arguments as they were before the call, and the output."""

    name: str
    module: nn.Module
    arguments: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None

    @property
    def first_tensor(self) -> Tensor | None:
        """The first tensor among the arguments: the activation that the module works on."""
        leaves = pytree.tree_leaves((self.arguments, self.kwargs))
        return next((leaf for leaf in leaves if isinstance(leaf, Tensor)), None)


def record_calls(module: nn.Module, forward: Callable[[], object]) -> list[ModuleCall]:
    """Return the calls of all modules during a forward, in the order in which they end."""
    calls: list[ModuleCall] = []
    running: list[ModuleCall] = []

    def pre_hook(name: str) -> Callable[..., None]:
        return lambda module, *inputs: running.append(ModuleCall(name, module, *snapshot(inputs)))

    def post_hook(_: nn.Module, __: Any, output: Any) -> None:
        calls.append(replace(running.pop(), output=output))

    handles = []
    for name, submodule in module.named_modules():
        handles.append(submodule.register_forward_pre_hook(pre_hook(name), with_kwargs=True))
        handles.append(submodule.register_forward_hook(post_hook))
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def snapshot(values: Any) -> Any:
    """Copy everything but tensors, because a block may modify its arguments (a key-value cache)."""

    def copied(leaf: Any) -> Any:
        try:
            return leaf if isinstance(leaf, Tensor) else copy_sharing_tensors(leaf)
        except Exception:  # an object that does not allow a copy is passed on as it is
            _log.debug("an argument of type %s cannot be copied", type(leaf).__name__, exc_info=True)
            return leaf

    return pytree.tree_map(copied, values)


@dataclass(frozen=True)
class ModuleKind:
    """Modules of the same class, sizes and settings that were called with inputs of the same shapes."""

    first: ModuleCall
    names: list[str]


@contextmanager
def run_one_of_each_kind(modules: Mapping[str, nn.Module]) -> Iterator[dict[object, ModuleKind]]:
    """Run only the first of several modules of one kind; the others return empty tensors shaped like its output.

    Gradients flow through these tensors to the modules' inputs. For use on fake tensors. The yielded kinds are filled
    in as modules are called.
    """
    kinds: dict[object, ModuleKind] = {}
    original_forwards = {name: module.__dict__.get("forward") for name, module in modules.items()}

    def run_once(name: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        shapes = tuple((parameter_name, tuple(p.shape)) for parameter_name, p in module.named_parameters())
        settings = tuple(str(_settings(submodule)) for submodule in module.modules())

        def run(*arguments: Any, **kwargs: Any) -> Any:
            inputs = tuple(_shape_or_value(leaf) for leaf in pytree.tree_leaves((arguments, kwargs)))
            key = type(module), shapes, settings, inputs
            if key in kinds:
                kinds[key].names.append(name)
                return _empty_output(kinds[key].first.output, (arguments, kwargs))
            *arguments_before, kwargs_before = snapshot((*arguments, kwargs))
            output = forward(*arguments, **kwargs)
            call = ModuleCall(name, module, tuple(arguments_before), kwargs_before, output)
            kinds[key] = ModuleKind(call, [name])
            return output

        return run

    try:
        for name, module in modules.items():
            module.forward = run_once(name, module, module.forward)
        yield kinds
    finally:
        for name, original in original_forwards.items():
            if original is None:
                del modules[name].forward
            else:
                modules[name].forward = original


def names_in_siblings(names: Iterable[str], kinds: Mapping[object, ModuleKind]) -> tuple[str, ...]:
    """Add, for each name of a tensor inside the first module of a kind, the same tensor of the others."""
    siblings = {kind.first.name: kind.names for kind in kinds.values()}

    def of_kind(name: str) -> list[str]:
        for first, others in siblings.items():
            if name.startswith(f"{first}."):
                return [other + name.removeprefix(first) for other in others]
        return [name]

    return tuple(dict.fromkeys(sibling for name in names for sibling in of_kind(name)))


_PLAIN_TYPES = (bool, int, float, str, type(None))


def _shape_or_value(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape)
    return leaf if isinstance(leaf, _PLAIN_TYPES) else type(leaf)


_IGNORED_SETTINGS = ("layer_idx", "layer_id", "layer_number", "index", "training")
"""Attributes that may differ between blocks of one kind."""


def _settings(module: nn.Module) -> dict[str, Any]:
    """Plain attributes that distinguish a module from others of its class: strides, numbers of heads."""
    return {
        name: value
        for name, value in module.__dict__.items()
        if isinstance(value, (*_PLAIN_TYPES, tuple)) and not name.startswith("_") and name not in _IGNORED_SETTINGS
    }


def _empty_output(output: Any, inputs: Any) -> Any:
    """Empty tensors like `output`, through which gradients flow to the first floating-point tensor of `inputs`."""
    source = next((x for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor) and x.is_floating_point()), None)

    def empty(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if source is None or not leaf.requires_grad or not torch.is_grad_enabled():
            return torch.empty_like(leaf)
        if not source.requires_grad:
            return torch.empty_like(leaf).requires_grad_()
        return EmptyLike.apply(source, leaf)  # type: ignore[no-untyped-call]

    return pytree.tree_map(empty, output)


class EmptyLike(torch.autograd.Function):
    """Returns an uninitialized tensor of another shape, through which gradients still flow."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, like: Tensor) -> Tensor:
        ctx.input = tensor
        return torch.empty_like(like)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return torch.empty_like(ctx.input), None
