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
_MAX_BUFFER_BYTES = 1 << 30
_ATTENTION_LENGTHS = (512, 1024, 2048, 4096, 8192)
"""Of the sequences on which attention is measured: the shortest on CPU, elsewhere the first that fills the device."""
_FILLING_SECONDS = 1e-3
"""An operation that takes this long keeps all of an accelerator busy; most of it is not the launch."""


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
    rate = 0.0
    for length in _ATTENTION_LENGTHS:
        flops, seconds = _attention(length, device)
        rate = flops / seconds
        if device.kind == "cpu" or seconds >= _FILLING_SECONDS:
            break
    return rate


def _attention(length: int, device: Device) -> tuple[int, float]:
    """FLOPs and seconds of attention over sequences of this length."""
    batch, heads, width = 2, 4 if device.kind == "cpu" else 16, 64
    dtype = torch.float32 if device.kind == "cpu" else torch.bfloat16
    query, key, value = (
        torch.randn(batch, heads, length, width, device=device.torch_device, dtype=dtype) for _ in range(3)
    )
    attention = torch.nn.functional.scaled_dot_product_attention
    seconds = seconds_per_call(lambda: attention(query, key, value), device)
    return batch * 4 * heads * length * length * width, seconds


def memory_bandwidth(device: Device) -> float:
    """Bytes per second read from and written to memory, by an operation on more than fits into caches."""
    size = _BUFFER_BYTES
    while True:
        seconds = _addition_seconds(size, device)
        if device.kind == "cpu" or seconds >= _FILLING_SECONDS or size >= _MAX_BUFFER_BYTES:
            return 2 * size / seconds
        size *= 4


def _addition_seconds(size: int, device: Device) -> float:
    values = torch.zeros(size // 4, device=device.torch_device)
    out = torch.empty_like(values)
    return seconds_per_call(lambda: torch.add(values, 1.0, out=out), device)


def rates(device: Device) -> Rates:
    """Measure the rates that depend on what the other ranks of the host are doing."""
    small = torch.zeros(8, device=device.torch_device)
    return Rates(
        matmul=matmul_rate(LARGE, "fp32", device),
        bandwidth=memory_bandwidth(device),
        op_seconds=seconds_per_call(lambda: small + 1.0, device),
    )
