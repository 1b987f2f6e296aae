"""Measures one device: matmul rates by size and precision, memory bandwidth, the time of the smallest operation."""

from dataclasses import dataclass

import torch

from onecurve.device.device import Device
from onecurve.measure.stopwatch import seconds_per_call

SIZES = (64, 128, 256, 512, 1024)
"""Rows of the square matrices that are multiplied on CPU; on accelerators they are larger by a factor."""
LARGE = 512
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_ACCELERATOR_SIZE_FACTOR = 8
_MAX_SECONDS = 0.2
"""Matrix products that would take longer than this are not measured."""
_BUFFER_BYTES = 1 << 26
"""Larger than CPU caches, so that memory bandwidth is measured."""


@dataclass(frozen=True)
class Rates:
    """The rates of one rank that change when other ranks of its host are busy."""

    matmul: float
    """FLOPs per second of large matrix products in fp32."""
    bandwidth: float
    """Bytes per second read from and written to memory."""
    op_seconds: float
    """Seconds of the smallest operation."""


def matmul_rate(size: int, precision: str, device: Device) -> float:
    """FLOPs per second of the product of two square matrices with `size` rows."""
    a, b = (torch.randn(size, size, device=device.torch_device).to(PRECISIONS[precision]) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / seconds_per_call(lambda: torch.mm(a, b, out=out), device)


def matmul_rates(device: Device) -> dict[str, dict[str, float]]:
    """FLOPs per second by precision and number of rows, in the form of DeviceSpec.matmul_rates."""
    scale = 1 if device.kind == "cpu" else _ACCELERATOR_SIZE_FACTOR
    by_precision: dict[str, dict[str, float]] = {}
    for precision in PRECISIONS:
        by_precision[precision] = {}
        for size in (scale * rows for rows in SIZES):
            rate = by_precision[precision][str(size)] = matmul_rate(size, precision, device)
            next_seconds = 8 * 2 * size**3 / rate  # of a product with twice the rows
            if size >= scale * LARGE and next_seconds > _MAX_SECONDS:
                break
    return by_precision


def attention_rate(device: Device) -> float:
    """FLOPs per second of the forward of fused attention, in fp32 on CPU and in bf16 on other devices."""
    batch, heads, length, width = 2, 4, 512, 64
    dtype = torch.float32 if device.kind == "cpu" else torch.bfloat16
    query, key, value = (
        torch.randn(batch, heads, length, width, device=device.torch_device, dtype=dtype) for _ in range(3)
    )
    flops = batch * 4 * heads * length * length * width
    attention = torch.nn.functional.scaled_dot_product_attention
    return flops / seconds_per_call(lambda: attention(query, key, value), device)


def rates(device: Device) -> Rates:
    """Measure the rates that depend on what the other ranks of the host are doing."""
    values = torch.zeros(_BUFFER_BYTES // 4, device=device.torch_device)
    out, small = torch.empty_like(values), torch.zeros(8, device=device.torch_device)
    return Rates(
        matmul=matmul_rate(LARGE, "fp32", device),
        bandwidth=2 * _BUFFER_BYTES / seconds_per_call(lambda: torch.add(values, 1.0, out=out), device),
        op_seconds=seconds_per_call(lambda: small + 1.0, device),
    )
