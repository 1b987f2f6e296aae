"""Traces the profile of a model, of any size, on fake tensors: what its blocks and everything outside them cost.

Blocks of one kind are traced once: the first one runs, and the others return tensors shaped like its output. Then one
block of each kind is run alone, forward and backward; and the model is run once more with all blocks replaced by the
identity, which gives the cost of everything outside the blocks.
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
    """How to run the model on a micro-batch of `samples` fake tensors of `mode`."""

    mode: FakeTensorMode
    samples: int
    run: Callable[[], object]
    """Runs the model."""
    loss: Callable[[], Tensor]
    """Runs the model and returns its loss."""


def profile(model: nn.Module, blocks: Sequence[str], forward: Forward, optimizer_tensors: int) -> Profile:
    """Trace the profile of a model for one micro-batch.

    `blocks`: names of the model's blocks; `optimizer_tensors`: tensors of optimizer state per trainable parameter.
    """
    modules = {name: model.get_submodule(name) for name in blocks}
    with forward.mode:
        with torch.no_grad(), run_one_of_each_kind(modules) as kinds:
            forward.run()
        profiles, shared = [], SavedTensors(model)
        for kind in kinds.values():
            run = run_block(kind.first, forward.mode, shared)
            profiles.append(module_profile(kind.first.module.parameters(), kind.names, run, kind.first.first_tensor))
        outputs = {modules[name]: kind.first.output for kind in kinds.values() for name in kind.names}
        with identity_blocks(outputs):
            counter, saved = _run_outside(model, forward)
    in_blocks = {id(parameter) for module in modules.values() for parameter in module.parameters()}
    other_parameters = [parameter for parameter in model.parameters() if id(parameter) not in in_blocks]
    saved.discard(shared)
    outside = BlockRun(counter.work, saved.nbytes, counter.matmul_output_bytes)
    return Profile(
        samples=forward.samples,
        blocks=tuple(profiles),
        outside=module_profile(other_parameters, [], outside, None),
        shared_activation_bytes=shared.nbytes,
        optimizer_tensors=optimizer_tensors,
    )


@dataclass(frozen=True)
class BlockRun:
    """Forward and backward of one block alone (or of everything outside the blocks), on one rank."""

    work: Work
    activation_bytes: int
    """Bytes that autograd saves for backward."""
    matmul_output_bytes: int


def run_block(call: ModuleCall, mode: FakeTensorMode, shared: SavedTensors) -> BlockRun:
    """Run one block alone, forward and backward.

    Saved inputs other than the first tensor (such as position tables) are the same for all blocks: they are added to
    `shared` instead of being counted for this block.
    """
    leaves, structure = pytree.tree_flatten((call.arguments, call.kwargs))
    tensor_indices = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    activation = leaves[tensor_indices[0]].detach()
    if activation.is_floating_point():
        activation = activation.requires_grad_().clone()  # not a leaf, because a block may modify it in place
    leaves[tensor_indices[0]] = activation
    arguments, kwargs = pytree.tree_unflatten(leaves, structure)
    saved, counter = SavedTensors(call.module), OpCounter(mode)
    with torch.enable_grad(), saved.hooks(), counter:
        output = call.module(*arguments, **kwargs)
        output_tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        counter.when = "backward"
        differentiable = [tensor for tensor in output_tensors if tensor.requires_grad]
        torch.autograd.backward(differentiable, [torch.empty_like(tensor) for tensor in differentiable])
    _clear_gradients(call.module)
    for index in tensor_indices[1:]:
        if saved.has(leaves[index]):
            shared.add(leaves[index])
    saved.discard(shared)
    saved.discard_chained_outputs(activation, output_tensors)
    return BlockRun(counter.work, saved.nbytes, counter.matmul_output_bytes)


def _run_outside(model: nn.Module, forward: Forward) -> tuple[OpCounter, SavedTensors]:
    saved, counter = SavedTensors(model), OpCounter(forward.mode)
    with torch.enable_grad(), saved.hooks(), counter:
        loss = forward.loss()
        counter.when = "backward"
        loss.backward()  # type: ignore[no-untyped-call]
    _clear_gradients(model)
    return counter, saved


def _clear_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def module_profile(
    parameters: Iterable[Tensor], names: Sequence[str], run: BlockRun, first_tensor: Tensor | None
) -> ModuleProfile:
    """Combine a run with the sizes of the module's parameters. `first_tensor`: the activation it was called with."""
    parameters = list(parameters)
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    return ModuleProfile(
        names=tuple(names),
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable=sum(parameter.numel() for parameter in trainable),
        parameter_bytes=sum(parameter.nbytes for parameter in parameters),
        trainable_bytes=sum(parameter.nbytes for parameter in trainable),
        work=run.work,
        activation_bytes=run.activation_bytes,
        input_bytes=0 if first_tensor is None else first_tensor.nbytes,
        matmul_output_bytes=run.matmul_output_bytes,
        tensor_count=len(parameters),
    )
