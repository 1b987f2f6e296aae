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

from onecurve.describe.profile import ModuleProfile, Profile, Work
from onecurve.measure.blocks import identity_blocks
from onecurve.measure.module_calls import ModuleCall, run_one_of_each_kind
from onecurve.measure.op_counter import OpCounter
from onecurve.measure.saved_tensors import SavedTensors


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
        with torch.no_grad(), run_one_of_each_kind(modules) as kinds:
            forward.run()
        found, shared = [], SavedTensors(model)
        for kind in kinds.values():
            run = run_block(kind.first, forward.mode, shared)
            found.append(module_of(kind.first.module.parameters(), kind.names, run, kind.first.given))
        returned = {modules[name]: kind.first.output for kind in kinds.values() for name in kind.names}
        with identity_blocks(returned):
            count, outside = _run_outside(model, forward)
    inside = {id(each) for module in modules.values() for each in module.parameters()}
    rest = [each for each in model.parameters() if id(each) not in inside]
    outside.drop(shared)
    return Profile(
        forward.samples,
        tuple(found),
        module_of(rest, [], BlockRun(count.work, outside.size, count.matmul_output_bytes), None),
        shared.size,
        optimizer_tensors,
    )


@dataclass(frozen=True)
class BlockRun:
    """A block by itself, forward and backward, on one rank."""

    work: Work
    activation_bytes: int
    matmul_output_bytes: int


def run_block(call: ModuleCall, mode: FakeTensorMode, shared: SavedTensors) -> BlockRun:
    """One block by itself. What it keeps of what it is given beside the stream others keep too: that is `shared`."""
    leaves, form = pytree.tree_flatten((call.arguments, call.kwargs))
    places = [number for number, each in enumerate(leaves) if isinstance(each, Tensor)]
    stream = leaves[places[0]].detach()
    if stream.is_floating_point():
        stream = stream.requires_grad_().clone()  # not a leaf: a block may write into it
    leaves[places[0]] = stream
    arguments, kwargs = pytree.tree_unflatten(leaves, form)
    kept, count = SavedTensors(call.module), OpCounter(mode)
    with torch.enable_grad(), kept.hooks(), count:
        outputs = [each for each in pytree.tree_leaves(call.module(*arguments, **kwargs)) if isinstance(each, Tensor)]
        count.when = "backward"
        floating = [each for each in outputs if each.requires_grad]
        torch.autograd.backward(floating, [torch.empty_like(each) for each in floating])
    _clear(call.module)
    for place in places[1:]:
        if kept.has(leaves[place]):
            shared.add(leaves[place])
    kept.drop(shared)
    kept.drop_chained(stream, outputs)
    return BlockRun(count.work, kept.size, count.matmul_output_bytes)


def _run_outside(model: nn.Module, forward: Forward) -> tuple[OpCounter, SavedTensors]:
    kept, count = SavedTensors(model), OpCounter(forward.mode)
    with torch.enable_grad(), kept.hooks(), count:
        loss = forward.loss()
        count.when = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
    _clear(model)
    return count, kept


def _clear(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def module_of(parameters: Iterable[Tensor], names: Sequence[str], run: BlockRun, given: Tensor | None) -> ModuleProfile:
    every = list(parameters)
    trained = [each for each in every if each.requires_grad]
    return ModuleProfile(
        tuple(names),
        sum(each.numel() for each in every),
        sum(each.numel() for each in trained),
        sum(each.nbytes for each in every),
        sum(each.nbytes for each in trained),
        run.work,
        run.activation_bytes,
        0 if given is None else given.nbytes,
        run.matmul_output_bytes,
        len(every),
    )
