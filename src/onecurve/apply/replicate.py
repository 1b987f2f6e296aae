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
    ddp = DistributedDataParallel(
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
