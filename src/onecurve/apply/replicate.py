"""The axis `replicate` used alone: torch's DDP, which averages gradients over the ranks while backward still runs."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.model.fake_mode import refuse_fake_tensors

UnusedParameterTest = Callable[[nn.Module, torch.dtype, Group], bool]
"""A function (module, dtype, group) → True if some steps leave a trainable parameter without a gradient."""
UnusedParameterTrial = Callable[[nn.Module, torch.dtype, int], Tensor]
"""A function (module, dtype, trial number) → loss. It runs the model on a few samples, different ones for each trial
number, to show which parameters get a gradient."""

_TRIALS = 3


def replicate(
    module: nn.Module, group: Group, find_unused: bool, compress_dtype: torch.dtype | None
) -> DistributedDataParallel:
    """Wrap the module in DDP.

    `find_unused`: some parameters may get no gradient. `compress_dtype`: the dtype in which gradients are sent, or None
    to send them in their own.
    """
    kind = DistributedDataParallel if find_unused else _DeterministicDDP
    ddp = kind(
        module,
        process_group=group,
        forward_sync_buffers=False,  # synchronized batch norm keeps buffers equal; local batch norm lets them differ
        init_sync=False,  # every rank has built the same initial weights
        gradient_as_bucket_view=True,
        find_unused_parameters=find_unused,
    )
    if compress_dtype is not None:
        ddp.register_comm_hook(group, _compress_hook(compress_dtype))
    return ddp


class _DeterministicDDP(DistributedDataParallel):
    """DDP that puts the same gradients into the same buckets in every step.

    By default the first step has one bucket, and later ones have buckets in the order in which the gradients of the
    first step were ready. With three or more ranks the order of a sum depends on the place in its bucket, so a run that
    was resumed would not compute the same numbers as one that was not. Here the order is fixed from the start: that of
    backward in a model whose modules are called in the order of their definition. With `find_unused_parameters` DDP
    never changes its buckets.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.reducer._push_all_rebuilt_params()

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        parameters, expect_sparse_gradient = super()._build_params_for_reducer()  # type: ignore[no-untyped-call]
        return parameters[::-1], expect_sparse_gradient[::-1]


@refuse_fake_tensors()
def leaves_parameters_unused(module: nn.Module, trial: UnusedParameterTrial, dtype: torch.dtype, group: Group) -> bool:
    """True if a trial backward leaves a trainable parameter without a gradient on any rank. All ranks get the same
    answer; the module's buffers and gradients are restored."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    unused = False
    for number in range(_TRIALS):
        trial(module, dtype, number).backward()  # type: ignore[no-untyped-call]
        unused |= any(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())
        module.zero_grad(set_to_none=True)
    for name, before in buffers.items():
        owner, _, attribute = name.rpartition(".")
        module.get_submodule(owner)._buffers[attribute] = before
    flag = torch.tensor(float(unused), device=next(module.parameters()).device)
    return bool(all_reduce_sum(group, flag).item())


def _compress_hook(dtype: torch.dtype) -> Callable[[Group, Any], torch.futures.Future[Tensor]]:
    """torch's compression hook under another name: by its own name DDP refuses bf16 without NCCL, though gloo can send
    it."""
    hook = default_hooks.bf16_compress_hook if dtype == torch.bfloat16 else default_hooks.fp16_compress_hook

    def compress(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        return hook(group, bucket)

    return compress
