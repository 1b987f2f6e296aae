"""The profile of a model: what its blocks and the rest cost, traced on fake tensors, of any size.

Blocks that are alike are traced once: what the first returned, the others return. A block is then run by itself,
forward and backward; and the model once more with all its blocks passed over, which leaves what is outside them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from onecurve.describe.profile import Module, Profile, Work
from onecurve.measure.blocks import passed_over
from onecurve.measure.call import Call, alike_once
from onecurve.measure.kept import Kept
from onecurve.measure.work import Count


@dataclass(frozen=True)
class Forward:
    """How to run the model on a micro-batch of fake tensors."""

    mode: FakeTensorMode
    samples: int
    run: Callable[[], object]
    loss: Callable[[], Tensor]


def profile(model: nn.Module, blocks: Sequence[str], forward: Forward, optimizer_tensors: int) -> Profile:
    """`blocks`: names of the model's blocks."""
    modules = {name: model.get_submodule(name) for name in blocks}
    with forward.mode:
        with torch.no_grad(), alike_once(modules) as kinds:
            forward.run()
        found, shared = [], Kept(model)
        for kind in kinds.values():
            run = run_block(kind.first, forward.mode, shared)
            found.append(module_of(kind.first.module.parameters(), kind.names, run, kind.first.given))
        returned = {modules[name]: kind.first.output for kind in kinds.values() for name in kind.names}
        with passed_over(returned):
            count, outside = _run_outside(model, forward)
    inside = {id(each) for module in modules.values() for each in module.parameters()}
    rest = [each for each in model.parameters() if id(each) not in inside]
    outside.drop(shared)
    return Profile(
        forward.samples,
        tuple(found),
        module_of(rest, [], BlockRun(count.work, outside.size, count.dear), None),
        shared.size,
        optimizer_tensors,
    )


@dataclass(frozen=True)
class BlockRun:
    """A block by itself, forward and backward, on one rank."""

    work: Work
    kept: int
    dear: int


def run_block(call: Call, mode: FakeTensorMode, shared: Kept) -> BlockRun:
    """One block by itself. What it keeps of what it is given beside the stream others keep too: that is `shared`."""
    leaves, form = pytree.tree_flatten((call.arguments, call.named))
    places = [number for number, each in enumerate(leaves) if isinstance(each, Tensor)]
    stream = leaves[places[0]].detach()
    if stream.is_floating_point():
        stream = stream.requires_grad_().clone()  # not a leaf: a block may write into it
    leaves[places[0]] = stream
    arguments, named = pytree.tree_unflatten(leaves, form)
    kept, count = Kept(call.module), Count(mode)
    with torch.enable_grad(), kept.hooks(), count:
        outputs = [each for each in pytree.tree_leaves(call.module(*arguments, **named)) if isinstance(each, Tensor)]
        count.when = "backward"
        floating = [each for each in outputs if each.requires_grad]
        torch.autograd.backward(floating, [torch.empty_like(each) for each in floating])
    _clear(call.module)
    for place in places[1:]:
        if kept.has(leaves[place]):
            shared.add(leaves[place])
    kept.drop(shared)
    kept.drop_chained(stream, outputs)
    return BlockRun(count.work, kept.size, count.dear)


def _run_outside(model: nn.Module, forward: Forward) -> tuple[Count, Kept]:
    kept, count = Kept(model), Count(forward.mode)
    with torch.enable_grad(), kept.hooks(), count:
        loss = forward.loss()
        count.when = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
    _clear(model)
    return count, kept


def _clear(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def module_of(parameters: Iterable[Tensor], names: Sequence[str], run: BlockRun, given: Tensor | None) -> Module:
    every = list(parameters)
    trained = [each for each in every if each.requires_grad]
    return Module(
        tuple(names),
        sum(each.numel() for each in every),
        sum(each.numel() for each in trained),
        sum(each.nbytes for each in every),
        sum(each.nbytes for each in trained),
        run.work,
        run.kept,
        0 if given is None else given.nbytes,
        run.dear,
        len(every),
    )
