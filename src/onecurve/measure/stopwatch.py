"""Times a function on a machine that other programs may use too."""

import statistics
import time
from collections.abc import Callable

from onecurve.device.device import Device

_MEASUREMENTS = 5
_MEASURE_ONCE_SECONDS = 0.3
"""A measurement that takes longer than this is not repeated."""


def seconds_per_call(function: Callable[[], object], device: Device, min_seconds: float = 0.02) -> float:
    """Seconds of one call: the median of several measurements, each of enough calls to last `min_seconds`."""
    function()  # warm-up
    device.wait()
    calls = 1
    while (seconds := _measure(function, device, calls)) < min_seconds:
        calls = max(2 * calls, round(1.2 * calls * min_seconds / max(seconds, 1e-9)))
    repetitions = _MEASUREMENTS - 1 if seconds < _MEASURE_ONCE_SECONDS else 0
    measured = [seconds, *(_measure(function, device, calls) for _ in range(repetitions))]
    return statistics.median(measured) / calls


def _measure(function: Callable[[], object], device: Device, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    device.wait()
    return time.perf_counter() - begin
