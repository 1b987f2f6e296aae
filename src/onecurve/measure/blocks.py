"""The blocks of a model: its repeated children, each wrapped, recomputed or split as one."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


def find_blocks(module: nn.Module, called: Set[str] | None = None) -> list[str]:
    """Names of the outermost modules that have siblings of their own class, in the order of the model.

    Leaves (a Linear among Linears) are too small to be blocks, and so are modules without parameters. A block that
    shares a parameter with the rest of the model is left out: it cannot be wrapped alone; and so is one that the model
    goes through without calling it. `called` are the modules known to be called, None where that is not known.
    """
    blocks: list[str] = []
    _search(module, "", blocks, called)
    shared = {block for owners in _owners(module, blocks) if len(owners) > 1 for block in owners}
    return [name for name in blocks if name not in shared]


def called_modules(module: nn.Module, forward: Callable[[nn.Module], object]) -> set[str] | None:
    """The names of the modules that a forward calls; None where it fails, as one on fake tensors may."""
    called: set[str] = set()
    hooks = [
        each.register_forward_pre_hook(lambda *_, name=name: called.add(name)) for name, each in module.named_modules()
    ]
    try:
        forward(module)
    except Exception:
        return None
    finally:
        for hook in hooks:
            hook.remove()
    return called


@contextmanager
def identity_blocks(blocks: Mapping[nn.Module, Any]) -> Iterator[None]:
    """Blocks, each with what it returned once, that hand on what they are given instead of computing."""
    before = {block: block.__dict__.get("forward") for block in blocks}

    def hand_on(returned: Any) -> Callable[..., Any]:
        def forward(*arguments: Any, **kwargs: Any) -> Any:
            given = next(each for each in pytree.tree_leaves((arguments, kwargs)) if isinstance(each, Tensor))
            leaves, form = pytree.tree_flatten(returned)
            place = next(number for number, each in enumerate(leaves) if isinstance(each, Tensor))
            if leaves[place].shape != given.shape:
                given = _Reshaped.apply(given, leaves[place])  # type: ignore[no-untyped-call]
            if given.is_floating_point() and not given.requires_grad and torch.is_grad_enabled():
                given = given.detach().requires_grad_()  # as behind blocks that are trained
            return pytree.tree_unflatten([given if n == place else each for n, each in enumerate(leaves)], form)

        return forward

    try:
        for block, returned in blocks.items():
            block.forward = hand_on(returned)
        yield
    finally:
        for block, forward in before.items():
            if forward is None:
                del block.forward
            else:
                block.forward = forward


class _Reshaped(torch.autograd.Function):
    """A tensor of another shape, which gradients go through all the same."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, like: Tensor) -> Tensor:
        ctx.like = given
        return torch.empty_like(like)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return torch.empty_like(ctx.like), None


def _search(module: nn.Module, prefix: str, blocks: list[str], called: Set[str] | None) -> None:
    children = dict(module.named_children())
    possible = {
        name: child
        for name, child in children.items()
        if _may_be_block(child) and (called is None or prefix + name in called)
    }
    classes = Counter(type(child) for child in possible.values())
    for name, child in children.items():
        if name in possible and classes[type(child)] > 1:
            blocks.append(prefix + name)
        else:
            _search(child, f"{prefix}{name}.", blocks, called)


def _may_be_block(module: nn.Module) -> bool:
    return (
        not isinstance(module, _CONTAINERS)
        and next(module.children(), None) is not None
        and next(module.parameters(), None) is not None
    )


def _owners(module: nn.Module, blocks: list[str]) -> list[set[str]]:
    """For each parameter the blocks it is in; "" stands for the rest of the model."""
    owners: dict[int, set[str]] = {}
    inside: set[int] = set()
    for block in blocks:
        for each in module.get_submodule(block).modules():
            inside.add(id(each))
            for parameter in each.parameters(recurse=False):
                owners.setdefault(id(parameter), set()).add(block)
    for each in module.modules():
        if id(each) not in inside:
            for parameter in each.parameters(recurse=False):
                owners.setdefault(id(parameter), set()).add("")
    return list(owners.values())
