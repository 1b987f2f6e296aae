"""Dtypes of a plan's precision: what weights are stored in, and what forward computes in under autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch

from onecurve.describe.plan import Compress, Precision
from onecurve.device.device import Device

_MASTER: dict[Precision, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.float32,
    "fp16": torch.float32,
}
LOW_PRECISION: dict[Precision | Compress, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def master_dtype(precision: Precision) -> torch.dtype:
    """The dtype of master weights, gradients and optimizer state; floating-point inputs are converted to it."""
    return _MASTER[precision]


def autocast(precision: Precision, device: Device) -> AbstractContextManager[object]:
    """The autocast context for forward and loss; a null context for fp32 and fp64."""
    if precision not in LOW_PRECISION:
        return nullcontext()
    return torch.autocast(device.kind, LOW_PRECISION[precision])
