"""Activation checkpointing: blocks recompute their forward during backward instead of saving all activations.

`full` saves only a block's input. `selective` also saves the outputs of the expensive operations: matrix products,
convolutions and attention. (In blocks with recurrent layers it is the same as `full`.) The recomputation leaves buffers
unchanged, so batch norm updates its running statistics once per forward. Buffers that forward reads and changes have,
during the recomputation, the values of the first run.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from onecurve.describe.plan import Recompute
from onecurve.device.rng import python_and_numpy_state, set_python_and_numpy_state
from onecurve.device.step_clock import step_clock
from onecurve.model.object_copy import copy_sharing_tensors

_aten = torch.ops.aten
_EXPENSIVE_OPS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
    }
)

# Arguments of any other type may be changed by the block, so they are copied before its forward.
_NOT_COPIED = (Tensor, int, float, str, bool, type(None), torch.dtype, torch.device)

ContextPair = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
"""The context of the original forward and the context of its recomputation."""


def checkpoint_blocks(
    module: nn.Module,
    blocks: Sequence[str],
    mode: Recompute,
    changed_buffers: Sequence[str] = (),
    *,
    compiled: bool = False,
) -> None:
    """Make the blocks recompute their activations, in place. Call this before they are compiled or sharded.

    `changed_buffers`: names, within the model, of buffers that forward changes, besides batch norm's. `compiled`: the
    blocks will be compiled. Their recomputation is then a part of backward, and counts as such.
    """
    if mode == "none":
        return
    for name in blocks:
        block = module.get_submodule(name)
        prefix = f"{name}." if name else ""
        changed = [buffer.removeprefix(prefix) for buffer in changed_buffers if buffer.startswith(prefix)]
        run = partial(checkpoint, use_reentrant=False)
        own_mode = _mode_of(block, mode)
        contexts = _SELECTIVE_CONTEXTS if own_mode == "selective" else noop_context_fn
        if next(block.buffers(), None) is not None:  # torch.compile cannot trace these contexts
            contexts = partial(_checkpoint_contexts, block, own_mode, changed)
        if not compiled:
            contexts = partial(_timed_contexts, partial(_redrawn_contexts, contexts))
        if contexts is not noop_context_fn:
            run = partial(run, context_fn=contexts)
        block.forward = partial(_checkpointed, block.forward, run)


def _mode_of(block: nn.Module, mode: Recompute) -> Recompute:
    """Recompute recurrent layers in full. torch's GRU and LSTM change the results of their own matrix products in
    place, behind the version counters: saved ones would give wrong gradients without an error."""
    is_recurrent = any(isinstance(module, nn.RNNBase | nn.RNNCellBase) for module in block.modules())
    return "full" if is_recurrent else mode


def _checkpointed(
    forward: Callable[..., Any], run_checkpointed: Callable[..., Any], *arguments: Any, **kwargs: Any
) -> Any:
    """Run `forward` with activation checkpointing, `run_checkpointed`.

    A block may change the objects passed to it (a key-value cache), so the recomputation gets copies made before the
    first run.
    """
    leaves, structure = pytree.tree_flatten((arguments, kwargs))
    if all(isinstance(leaf, _NOT_COPIED) for leaf in leaves):
        return run_checkpointed(forward, *arguments, **kwargs)
    copies = [None if isinstance(leaf, _NOT_COPIED) else copy_sharing_tensors(leaf) for leaf in leaves]
    runs = 0

    def run(*run_leaves: Any) -> Any:
        nonlocal runs
        runs += 1
        objects = leaves if runs == 1 else copies
        merged = [
            leaf if isinstance(leaf, _NOT_COPIED) else item for leaf, item in zip(run_leaves, objects, strict=True)
        ]
        run_arguments, run_kwargs = pytree.tree_unflatten(merged, structure)
        return forward(*run_arguments, **run_kwargs)

    return run_checkpointed(run, *leaves)


def _timed_contexts(contexts: Callable[[], ContextPair]) -> ContextPair:
    """Add that the time of the recomputation counts as such."""
    forward_context, recompute_context = contexts()
    return forward_context, _nested(step_clock.measure("recompute"), recompute_context)


def _redrawn_contexts(contexts: Callable[[], ContextPair]) -> ContextPair:
    """Add that Python's and NumPy's generators draw the same in the recomputation. torch restores its own."""
    forward_context, recompute_context = contexts()
    before: list[Any] = []
    return (
        _nested(_remembered_generators(before), forward_context),
        _nested(_restored_generators(before), recompute_context),
    )


@contextmanager
def _remembered_generators(states: list[Any]) -> Iterator[None]:
    states.append(python_and_numpy_state())
    yield


@contextmanager
def _restored_generators(states: Sequence[Any]) -> Iterator[None]:
    now = python_and_numpy_state()
    set_python_and_numpy_state(states[0])
    try:
        yield
    finally:
        set_python_and_numpy_state(now)


def _checkpoint_contexts(block: nn.Module, mode: Recompute, changed: Sequence[str]) -> ContextPair:
    forward_context: AbstractContextManager[Any] = nullcontext()
    recompute_context: AbstractContextManager[Any] = nullcontext()
    if mode == "selective":
        forward_context, recompute_context = _SELECTIVE_CONTEXTS()
    before: dict[str, Tensor] = {}  # values of the changed buffers when the forward began
    # Buffers are copied in the outer context, so that the selective policy does not see their copies.
    return (
        _nested(_remembered_buffers(block, changed, before), forward_context),
        _nested(_restored_buffers(block, before), recompute_context),
    )


def _policy(_: Any, function: Callable[..., Any], *__: Any, **___: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if function in _EXPENSIVE_OPS else CheckpointPolicy.PREFER_RECOMPUTE


_SELECTIVE_CONTEXTS: Callable[[], ContextPair] = partial(create_selective_checkpoint_contexts, _policy)


@contextmanager
def _remembered_buffers(block: nn.Module, names: Sequence[str], values: dict[str, Tensor]) -> Iterator[None]:
    """Put copies of the named buffers into `values`."""
    values.update({name: block.get_buffer(name).clone() for name in names})
    yield


@contextmanager
def _restored_buffers(block: nn.Module, during: Mapping[str, Tensor]) -> Iterator[None]:
    """Set buffers to the values in `during`; on exit, undo this and every other change of buffers."""
    now = [
        (submodule, name, buffer, buffer.clone())
        for submodule in block.modules()
        for name, buffer in submodule.named_buffers(recurse=False)
    ]
    for buffer_name, value in during.items():
        block.get_buffer(buffer_name).data.copy_(value)
    try:
        yield
    finally:
        for submodule, name, buffer, value in now:
            # Through .data: autograd saves running statistics that it never uses, and would report the change.
            buffer.data.copy_(value)
            submodule._buffers[name] = buffer  # forward may have registered another tensor


@contextmanager
def _nested(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(outer)
        stack.enter_context(inner)
        yield
