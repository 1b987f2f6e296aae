"""What is computed in. Weights and optimizer state stay in float32 (float64 for proofs); bf16 and fp16 are autocast's.

Under `shard` parameters are gathered in the narrow type too, which halves what is sent; gradients are summed in float32
unless the plan compresses them.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from onecurve.describe.plan import Compress, Plan, Precision
from onecurve.device.device import Device

_KEPT: dict[Precision, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.float32,
    "fp16": torch.float32,
}
_NARROW: dict[Precision | Compress, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def kept_dtype(precision: Precision) -> torch.dtype:
    """What weights are kept in, and floating-point inputs converted to."""
    return _KEPT[precision]


def computing(precision: Precision, device: Device) -> AbstractContextManager[object]:
    """The context of forward and loss."""
    if precision not in _NARROW:
        return nullcontext()
    return torch.autocast(device.kind, _NARROW[precision])


def compute_so(module: nn.Module, precision: Precision, device: Device) -> None:
    """The same for a module that is called by the user: its forward takes care of it, in place."""
    if precision in _NARROW:
        forward = module.forward

        def narrow(*arguments: Any, **named: Any) -> Any:
            with computing(precision, device):
                return forward(*arguments, **named)

        module.forward = narrow


def shard_policy(plan: Plan) -> MixedPrecisionPolicy:
    narrow = _NARROW.get(plan.precision)
    reduce = _NARROW.get(plan.compress, torch.float32 if narrow else None)
    return MixedPrecisionPolicy(param_dtype=narrow, reduce_dtype=reduce, cast_forward_inputs=False)


def compressed_dtype(plan: Plan) -> torch.dtype | None:
    """What replicated gradients are sent in; None for what they are."""
    return _NARROW.get(plan.compress)
