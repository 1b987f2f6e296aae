"""The axis `replicate` alone: torch's DDP, which averages gradients over the ranks while backward still runs."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from onecurve.device.collectives import Group, all_reduce_sum

UnusedParameterTrial = Callable[[nn.Module, torch.dtype, int], Tensor]
"""Runs the model on a few samples, others for each number, and returns a loss: shows which parameters it uses."""

_TRIALS = 3


def replicate(module: nn.Module, group: Group, unused: bool, compressed: torch.dtype | None) -> DistributedDataParallel:
    """`unused`: some parameters get no gradient. `compressed`: what gradients are sent in."""
    replicated = DistributedDataParallel(
        module,
        process_group=group,
        forward_sync_buffers=False,  # synchronized batch norm leaves them equal, local is meant to differ
        init_sync=False,  # every rank has replayed the same weights
        gradient_as_bucket_view=True,
        find_unused_parameters=unused,
    )
    if compressed is not None:
        replicated.register_comm_hook(group, _send_as(compressed))
    return replicated


def leaves_parameters_unused(module: nn.Module, trial: UnusedParameterTrial, dtype: torch.dtype, group: Group) -> bool:
    """Whether a trial backward leaves a trained parameter without gradient, on any rank: all must know the same.

    The module is left as it was found.
    """
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


def _send_as(dtype: torch.dtype) -> Callable[[Group, Any], torch.futures.Future[Tensor]]:
    """torch's own hooks. By their names DDP would refuse bf16 off NCCL, though gloo carries it."""
    hook = default_hooks.bf16_compress_hook if dtype == torch.bfloat16 else default_hooks.fp16_compress_hook

    def send(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:  # type: ignore[name-defined]
        return hook(group, bucket)

    return send
