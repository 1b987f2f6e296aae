"""What is computed in. Weights and optimizer state stay in float32 (float64 for proofs); bf16 and fp16 are autocast's.

Under `shard` parameters are gathered in the narrow type too, which halves what is sent; gradients are summed in float32
unless the plan compresses them.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from onecurve.describe.plan import Plan, Precision
from onecurve.device.device import Device
from onecurve.device.precision import LOW_PRECISION, autocast


def autocast_forward(module: nn.Module, precision: Precision, device: Device) -> None:
    """The same for a module that is called by the user: its forward takes care of it, in place."""
    if precision in LOW_PRECISION:
        forward = module.forward

        def narrow(*arguments: Any, **kwargs: Any) -> Any:
            with autocast(precision, device):
                return forward(*arguments, **kwargs)

        module.forward = narrow


def shard_policy(plan: Plan) -> MixedPrecisionPolicy:
    narrow = LOW_PRECISION.get(plan.precision)
    reduce = LOW_PRECISION.get(plan.compress, torch.float32 if narrow else None)
    return MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=reduce, cast_forward_inputs=False)


def compressed_dtype(plan: Plan) -> torch.dtype | None:
    """What replicated gradients are sent in; None for what they are."""
    return LOW_PRECISION.get(plan.compress)
