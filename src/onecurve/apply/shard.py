"""The axis `shard`: every rank keeps a part of each parameter, of its gradient and of its optimizer state.

A block's parameters are gathered for its forward and again for its backward (zero3), or kept in between (zero2).
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from onecurve.describe.plan import Sharding


def shard(
    module: nn.Module,
    blocks: Sequence[str],
    mesh: DeviceMesh,
    materialize: Callable[[nn.Module], None],
    sharding: Sharding,
    policy: MixedPrecisionPolicy,
) -> FSDPModule:
    """Make the module real and shard it block by block, so that no rank ever holds more than one block whole."""
    settings = {"mesh": mesh, "mp_policy": policy, "reshard_after_forward": sharding == "zero3"}
    for name in blocks:
        block = module.get_submodule(name)
        materialize(block)
        _shard_one(block, settings)
    # What is left at the root; its blocks hold real parameters already and are passed over.
    materialize(module)
    return _shard_one(module, settings)


# torch warns that a loss which writes into the model's output would lose a hook; `onecurve check` finds such a loss.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


def _shard_one(module: nn.Module, settings: dict[str, Any]) -> FSDPModule:
    scalars = {parameter for parameter in module.parameters() if parameter.dim() == 0}
    sharded = fully_shard(module, ignored_params=scalars, **settings)
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    return sharded
