"""How long a device computes.

A roofline whose two parts add up instead of hiding each other: products at the rate that they reach, and every byte
that operations read and write at the rate that the memory reaches (Williams, Waterman, Patterson 2009,
doi:10.1145/1498765.1498785, for the two rates). Small products are slow by this because they move much for what they
compute. On an accelerator the host runs ahead; where operations are shorter than it takes to start them, it sets the
pace.
"""

from onecurve.describe.cluster import DeviceSpec
from onecurve.describe.profile import Load
from onecurve.predict.constants import Constants


def seconds(load: Load, device: DeviceSpec, precision: str, constants: Constants) -> float:
    """Of one load, the host's pace among it."""
    return max(busy(load, device, precision, constants), load.operations * constants.launch)


def busy(load: Load, device: DeviceSpec, precision: str, constants: Constants) -> float:
    """What the device itself takes."""
    moved = load.moved + (constants.reread - 1) * load.operands
    return products(load, device, precision, constants) + moved / (device.bandwidth * constants.memory)


def products(load: Load, device: DeviceSpec, precision: str, constants: Constants) -> float:
    peak = device.peak(precision)
    dense = sum(count for kind, count in load.flops.items() if kind != "attention")
    attention = load.flops.get("attention", 0)
    return dense / (peak * device.matrix * constants.matrix) + attention / (
        peak * device.attention * constants.attention
    )
