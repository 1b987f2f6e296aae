"""The axis `shard`: every rank keeps a part of each parameter, of its gradient and of its optimizer state.

A block's parameters are gathered for its forward and again for its backward (zero3), or kept in between (zero2).
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from onecurve.describe.plan import Sharding
from onecurve.device.exchange import Group, add_over


def shard(
    module: nn.Module,
    blocks: Sequence[str],
    mesh: DeviceMesh,
    realize: Callable[[nn.Module], None],
    sharding: Sharding,
    policy: MixedPrecisionPolicy,
) -> FSDPModule:
    """Make the module real and shard it block by block, so that no rank ever holds more than one block whole."""
    settings = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": sharding == "zero3"}
    for name in blocks:
        block = module.get_submodule(name)
        realize(block)
        _shard_one(block, settings)
    # What is left at the root; its blocks hold real parameters already and are passed over.
    realize(module)
    return _shard_one(module, settings)


# torch warns that a loss which writes into the model's output would lose a hook; `onecurve check` finds such a loss.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


def _shard_one(module: nn.Module, settings: dict[str, Any]) -> FSDPModule:
    scalars = {parameter for parameter in module.parameters() if parameter.dim() == 0}
    sharded = fully_shard(module, ignored_params=scalars, **settings)
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    return sharded


class ScalarReduction:
    """Sums the gradients of scalar parameters, which fully_shard refuses, over the ranks."""

    def __init__(self, module: nn.Module, group: Group) -> None:
        self._scalars = [p for p in module.parameters() if p.dim() == 0 and p.requires_grad]
        self._group = group

    def __call__(self) -> None:
        if not self._scalars:
            return
        used = [parameter.grad is not None for parameter in self._scalars]
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self._scalars]
        sums = torch.stack([*gradients, *(torch.full_like(g, u) for g, u in zip(gradients, used, strict=True))])
        add_over(self._group, sums)
        totals, uses = sums.chunk(2)
        for parameter, total, use in zip(self._scalars, totals, uses.tolist(), strict=True):
            parameter.grad = total.clone() if use else None
