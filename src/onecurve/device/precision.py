"""Dtypes for a plan's precision: of the master weights, and of the computation under autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch

from onecurve.describe.plan import Compress, Precision
from onecurve.device.device import Device

_MASTER_DTYPES: dict[Precision, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.float32,
    "fp16": torch.float32,
}
LOW_PRECISION: dict[Precision | Compress, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""16-bit dtypes: for computation under autocast, and for compressed gradients."""


def master_dtype(precision: Precision) -> torch.dtype:
    """The dtype of master weights, gradients, optimizer state and floating-point inputs."""
    return _MASTER_DTYPES[precision]


def autocast(precision: Precision, device: Device) -> AbstractContextManager[object]:
    """Return the autocast context for forward and loss, or a null context for fp32 and fp64."""
    if precision not in LOW_PRECISION:
        return nullcontext()
    return torch.autocast(device.kind, LOW_PRECISION[precision])
