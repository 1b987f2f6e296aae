"""What one device does: products by size and precision, bytes moved, the smallest operation."""

from dataclasses import dataclass

import torch

from onecurve.device.device import Device
from onecurve.measure.stopwatch import seconds_of

SIZES = (64, 128, 256, 512, 1024)
LARGE = 512
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_LARGE_ON_ACCELERATORS = 8
_LONGEST = 0.2
_BYTES = 1 << 26
"""More than caches hold."""


@dataclass(frozen=True)
class Rates:
    products: float
    """FLOPs per second of large products in fp32."""
    bandwidth: float
    operation: float


def product_rate(size: int, precision: str, device: Device) -> float:
    """FLOPs per second of a square matrix product."""
    made = [torch.randn(size, size, device=device.torch_device).to(PRECISIONS[precision]) for _ in range(2)]
    out = torch.empty_like(made[0])
    return 2 * size**3 / seconds_of(lambda: torch.mm(made[0], made[1], out=out), device)


def product_rates(device: Device) -> dict[str, dict[str, float]]:
    """By precision and size, as a cluster file has them."""
    scale = 1 if device.kind == "cpu" else _LARGE_ON_ACCELERATORS
    found: dict[str, dict[str, float]] = {}
    for precision in PRECISIONS:
        found[precision] = {}
        for size in (scale * each for each in SIZES):
            rate = found[precision][str(size)] = product_rate(size, precision, device)
            if size >= scale * LARGE and 8 * 2 * size**3 / rate > _LONGEST:  # one of twice the size would take so long
                break
    return found


def attention_rate(device: Device) -> float:
    """FLOPs per second of fused attention, forward, in fp32 on CPU and bf16 elsewhere."""
    heads, length, width = 4, 512, 64
    dtype = torch.float32 if device.kind == "cpu" else torch.bfloat16
    query, key, value = (
        torch.randn(2, heads, length, width, device=device.torch_device, dtype=dtype) for _ in range(3)
    )
    flops = 2 * 4 * heads * length * length * width
    attend = torch.nn.functional.scaled_dot_product_attention
    return flops / seconds_of(lambda: attend(query, key, value), device)


def rates(device: Device) -> Rates:
    """What is asked of a device again and again, as others are at work beside it."""
    moved = torch.zeros(_BYTES // 4, device=device.torch_device)
    out, small = torch.empty_like(moved), torch.zeros(8, device=device.torch_device)
    return Rates(
        product_rate(LARGE, "fp32", device),
        2 * _BYTES / seconds_of(lambda: torch.add(moved, 1.0, out=out), device),
        seconds_of(lambda: small + 1.0, device),
    )
