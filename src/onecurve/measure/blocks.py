"""Finds a model's blocks: the repeated children that are wrapped, recomputed or assigned to a stage as one unit."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onecurve.measure.module_calls import EmptyLike
from onecurve.measure.refusal import explain_trace_failure

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
_MANY_BLOCKS = 8
"""A module with this many blocks is not a block itself."""


def find_blocks(module: nn.Module, called: Set[str] | None = None) -> list[str]:
    """Return the names of the outermost modules that have siblings of the same class, in model order.

    Modules without children (a Linear among Linears) or without parameters are not blocks. A module that shares a
    parameter with the rest of the model cannot be wrapped on its own, so the blocks inside it are taken instead: an
    encoder and a decoder that share their embedding. The same holds for a module with many blocks of its own, such as a
    stage of a UNet with ten transformer layers. If `called` (the names of the modules that a forward calls) is
    given, a module that the model uses without calling it is no block either.
    """
    sharing: set[str] = set()
    while True:
        blocks: list[str] = []
        _collect_blocks(module, "", blocks, called, sharing)
        found = {block for owners in _parameter_owners(module, blocks) if len(owners) > 1 for block in owners} - {""}
        if not found:
            return blocks
        sharing |= found


def find_called_once(module: nn.Module, calls: Mapping[str, int]) -> list[str]:
    """Return the names of the smallest modules that have parameters and are called exactly once, in model order.

    `calls`: the number of calls of each module in a forward. A pipeline can be cut between any of these modules.
    """
    names: list[str] = []
    for name, child in module.named_children():
        if next(child.parameters(), None) is None:
            continue
        inside = [f"{name}.{inner}" for inner in find_called_once(child, _below(name, calls))]
        names += [name] if len(inside) < 2 and calls.get(name) == 1 else inside
    return names


def _below(name: str, calls: Mapping[str, int]) -> dict[str, int]:
    prefix = f"{name}."
    return {each.removeprefix(prefix): count for each, count in calls.items() if each.startswith(prefix)}


def count_calls(module: nn.Module, forward: Callable[[nn.Module], object]) -> Counter[str] | None:
    """Return how often a forward calls each module, or None if it fails (as it may on fake tensors)."""
    called: Counter[str] = Counter()
    hooks = [
        submodule.register_forward_pre_hook(lambda *_, name=name: called.update([name]))
        for name, submodule in module.named_modules()
    ]
    try:
        forward(module)
    except Exception as error:  # a model may read values, which fake tensors do not have
        explain_trace_failure(error, module, "blocks")
        return None
    finally:
        for hook in hooks:
            hook.remove()
    return called


@contextmanager
def identity_blocks(blocks: Mapping[nn.Module, Any]) -> Iterator[None]:
    """Make each block return its first input tensor instead of computing.

    `blocks` maps each block to an output it returned earlier; the new output has the same structure and shapes.
    """
    original_forwards = {block: block.__dict__.get("forward") for block in blocks}

    def identity_forward(recorded_output: Any) -> Callable[..., Any]:
        def forward(*arguments: Any, **kwargs: Any) -> Any:
            tensor = next(leaf for leaf in pytree.tree_leaves((arguments, kwargs)) if isinstance(leaf, Tensor))
            leaves, structure = pytree.tree_flatten(recorded_output)
            index = next(number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
            if leaves[index].shape != tensor.shape:
                tensor = EmptyLike.apply(tensor, leaves[index])  # type: ignore[no-untyped-call]
            if tensor.is_floating_point() and not tensor.requires_grad and torch.is_grad_enabled():
                tensor = tensor.detach().requires_grad_()  # the output of a trainable block requires a gradient
            leaves[index] = tensor
            return pytree.tree_unflatten(leaves, structure)

        return forward

    try:
        for block, recorded_output in blocks.items():
            block.forward = identity_forward(recorded_output)
        yield
    finally:
        for block, original in original_forwards.items():
            if original is None:
                del block.forward
            else:
                block.forward = original


def _collect_blocks(
    module: nn.Module, prefix: str, blocks: list[str], called: Set[str] | None, sharing: Set[str]
) -> None:
    """Add the blocks inside a module; names in `sharing` are no blocks themselves."""
    children = dict(module.named_children())
    candidates = {
        name: child
        for name, child in children.items()
        if _can_be_block(child) and (called is None or prefix + name in called)
    }
    classes = Counter(type(child) for child in candidates.values())
    for name, child in children.items():
        inside: list[str] = []
        _collect_blocks(child, f"{prefix}{name}.", inside, called, sharing)
        is_block = name in candidates and classes[type(child)] > 1 and prefix + name not in sharing
        blocks += [prefix + name] if is_block and len(inside) < _MANY_BLOCKS else inside


def _can_be_block(module: nn.Module) -> bool:
    return (
        not isinstance(module, _CONTAINERS)
        and next(module.children(), None) is not None
        and next(module.parameters(), None) is not None
    )


def _parameter_owners(module: nn.Module, blocks: list[str]) -> list[set[str]]:
    """Return, for each parameter, the blocks that contain it; "" stands for the rest of the model."""
    owners: dict[int, set[str]] = {}
    inside: set[int] = set()
    for block in blocks:
        for submodule in module.get_submodule(block).modules():
            inside.add(id(submodule))
            for parameter in submodule.parameters(recurse=False):
                owners.setdefault(id(parameter), set()).add(block)
    for submodule in module.modules():
        if id(submodule) not in inside:
            for parameter in submodule.parameters(recurse=False):
                owners.setdefault(id(parameter), set()).add("")
    return list(owners.values())
