"""How long a device computes.

A roofline whose two parts add up instead of hiding each other: products at the rate that they reach, and every byte
that operations read and write at the rate that the memory reaches (Williams, Waterman, Patterson 2009,
doi:10.1145/1498765.1498785, for the two rates). Small products are slow by this because they move much for what they
compute.
"""

from onecurve.describe.cluster import DeviceSpec
from onecurve.describe.constants import Constants
from onecurve.describe.profile import Load

_NARROW = ("fp8", "fp4")


def seconds(load: Load, device: DeviceSpec, precision: str, constants: Constants) -> float:
    """Of the device itself, however long the host takes to start it all. Attention is in bf16 where products are in
    less."""
    attention = load.flops.get("attention", 0)
    total = sum(load.flops.values())
    speed = device.speed(precision, total / load.matmuls if load.matmuls else 0.0)
    wide = device.peak("bf16" if precision in _NARROW else precision)
    return (
        (total - attention) / (speed * constants.matmul_efficiency)
        + attention / (wide * device.attention_efficiency * constants.attention_efficiency)
        + load.bytes_moved / (device.memory_bandwidth * constants.memory_efficiency)
    )
