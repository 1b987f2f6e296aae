"""Computing again in backward what forward did not keep, block by block.

`full` keeps only a block's input; `selective` also keeps what is dear to compute: matrix products, convolutions and
attention. Buffers are left as the first run left them, so batch norm's statistics are updated once.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from onecurve.describe.plan import Recompute

_aten = torch.ops.aten
_DEAR = frozenset(
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

_PLAIN = (Tensor, int, float, str, bool, type(None), torch.dtype, torch.device)

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def recompute(module: nn.Module, blocks: Sequence[str], how: Recompute) -> None:
    """Make the blocks recompute, in place. Before they are compiled or sharded."""
    if how == "none":
        return
    for name in blocks:
        block = module.get_submodule(name)
        contexts = partial(_contexts, block, how)
        block.forward = partial(_repeatable, block.forward, contexts)


def _repeatable(forward: Callable[..., Any], contexts: Callable[[], Contexts], *arguments: Any, **kwargs: Any) -> Any:
    """A block may write into objects it is given (a key-value cache): the repetition gets them as they were."""
    leaves, form = pytree.tree_flatten((arguments, kwargs))
    if all(isinstance(leaf, _PLAIN) for leaf in leaves):
        return checkpoint(forward, *arguments, use_reentrant=False, context_fn=contexts, **kwargs)
    with _TensorsShared():
        before = [None if isinstance(leaf, _PLAIN) else copy.deepcopy(leaf) for leaf in leaves]
    runs = 0

    def run(*tensors: Any) -> Any:
        nonlocal runs
        runs += 1
        objects = leaves if runs == 1 else before
        both = [leaf if isinstance(leaf, _PLAIN) else other for leaf, other in zip(tensors, objects, strict=True)]
        given, given_named = pytree.tree_unflatten(both, form)
        return forward(*given, **given_named)

    return checkpoint(run, *leaves, use_reentrant=False, context_fn=contexts)


class _TensorsShared(TorchFunctionMode):
    """Objects are copied, the tensors in them are not."""

    def __torch_function__(
        self, function: Any, _: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is Tensor.__deepcopy__:
            return arguments[0]
        return function(*arguments, **(kwargs or {}))


def _contexts(block: nn.Module, how: Recompute) -> Contexts:
    """For the first run of forward, and for its repetition."""
    first: AbstractContextManager[Any] = nullcontext()
    again: AbstractContextManager[Any] = nullcontext()
    if how == "selective":
        first, again = create_selective_checkpoint_contexts(_policy)  # type: ignore[no-untyped-call]
    # Outside, so that the selection does not see the buffers being copied.
    return first, _both(_buffers_untouched(block), again)


def _policy(_: Any, function: Callable[..., Any], *__: Any, **___: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if function in _DEAR else CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def _buffers_untouched(block: nn.Module) -> Iterator[None]:
    before = [(buffer, buffer.clone()) for buffer in block.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)  # unseen by autograd, which keeps running statistics it never uses


@contextmanager
def _both(outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(outer)
        stack.enter_context(inner)
        yield
