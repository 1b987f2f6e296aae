"""Mixed precision: autocast for the forward pass, and the dtypes of collectives.

Parameters and optimizer state stay in float32 (in float64 when plans are compared); bf16 and fp16 use autocast. Under
`shard`, parameters are all-gathered in the autocast dtype, which halves the bytes sent, and gradients are
reduce-scattered in float32 unless the plan compresses them.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from onecurve.describe.plan import Plan, Precision
from onecurve.device.device import Device
from onecurve.device.precision import LOW_PRECISION, autocast


def autocast_forward(module: nn.Module, precision: Precision, device: Device) -> None:
    """Make the module's forward enter autocast by itself, in place: for modules that the user calls."""
    if precision in LOW_PRECISION:
        forward = module.forward

        def forward_in_autocast(*arguments: Any, **kwargs: Any) -> Any:
            with autocast(precision, device):
                return forward(*arguments, **kwargs)

        module.forward = forward_in_autocast


def shard_policy(plan: Plan) -> MixedPrecisionPolicy:
    """The dtypes in which fully_shard all-gathers parameters and reduce-scatters gradients."""
    compute_dtype = LOW_PRECISION.get(plan.precision)
    reduce_dtype = LOW_PRECISION.get(plan.compress, torch.float32 if compute_dtype else None)
    return MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False)


def compressed_dtype(plan: Plan) -> torch.dtype | None:
    """The dtype in which DDP sends gradients, or None to send them in their own."""
    return LOW_PRECISION.get(plan.compress)
