"""How long something takes, on a machine that others use too."""

import statistics
import time
from collections.abc import Callable

from onecurve.device.device import Device

_TIMES = 5
_LONG = 0.3
"""Seconds: what takes longer is measured once."""


def seconds_of(work: Callable[[], object], device: Device, least: float = 0.02) -> float:
    """Of one call: the median of several measurements, each long enough to be read."""
    work()  # what is done once is not counted
    device.wait()
    calls = 1
    while (took := _measure(work, device, calls)) < least:
        calls = max(2 * calls, round(1.2 * calls * least / max(took, 1e-9)))
    again = _TIMES - 1 if took < _LONG else 0
    return statistics.median([took, *(_measure(work, device, calls) for _ in range(again))]) / calls


def _measure(work: Callable[[], object], device: Device, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    device.wait()
    return time.perf_counter() - begin
