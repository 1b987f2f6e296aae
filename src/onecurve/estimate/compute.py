"""Time of computation on a device.

A roofline model whose two terms are added instead of taking the maximum: FLOPs at the speed that matrix products reach,
and bytes read and written at the speed that the memory reaches (Williams, Waterman, Patterson 2009,
doi:10.1145/1498765.1498785, for the two rates). Small matrix products are slow in this model because they move many
bytes per FLOP.
"""

from onecurve.describe.cluster import DeviceSpec
from onecurve.describe.constants import Constants
from onecurve.describe.profile import ComputeLoad

_BELOW_16_BITS = ("fp8", "fp4")


def seconds(load: ComputeLoad, device: DeviceSpec, precision: str, constants: Constants) -> float:
    """Return the seconds that the device is busy, without the host's launch time.

    Attention runs in bf16 if the precision has fewer than 16 bits.
    """
    attention = load.flops.get("attention", 0)
    total = sum(load.flops.values())
    speed = device.speed(precision, total / load.matmuls if load.matmuls else 0.0)
    attention_peak = device.peak("bf16" if precision in _BELOW_16_BITS else precision)
    return (
        (total - attention) / (speed * constants.matmul_efficiency)
        + attention / (attention_peak * device.attention_efficiency * constants.attention_efficiency)
        + load.bytes_moved / (device.memory_bandwidth * constants.memory_efficiency)
    )
