"""Sums over the steps of a run, in a size that does not grow with them."""

import math
from dataclasses import dataclass, field

from onecurve.describe.record import own_seconds
from onecurve.diagnose.history import Seconds

PARTS = 120
"""Equal parts of a run's steps, for which times are kept."""


class SharedSteps:
    """The steps that every rank has recorded one by one."""

    def __init__(self, ranks: int, first: int) -> None:
        self._ranks, self._first = ranks, first
        self._own: dict[int, _Values] = {}
        self._worked: dict[int, _Values] = {}

    def add(self, step: int, seconds: Seconds, cpu_seconds: float) -> None:
        if step >= self._first and "step" not in seconds:
            own = own_seconds(seconds)
            self._own.setdefault(step, _Values()).add(own)
            worked = min(own, cpu_seconds + seconds.get("data", 0.0)) if cpu_seconds else own
            self._worked.setdefault(step, _Values()).add(worked)

    def spread(self) -> float:
        return self._mean_spread(self._own)

    def worked_spread(self) -> float:
        return self._mean_spread(self._worked)

    def _mean_spread(self, steps: "dict[int, _Values]") -> float:
        spreads = [values.spread for values in steps.values() if values.ranks == self._ranks]
        return math.fsum(spreads) / len(spreads) if spreads else 0.0


@dataclass
class _Values:
    """The values of several ranks."""

    ranks: int = 0
    total: float = 0.0
    largest: float = 0.0

    def add(self, value: float) -> None:
        self.ranks += 1
        self.total += value
        self.largest = max(self.largest, value)

    @property
    def spread(self) -> float:
        """The largest minus the mean."""
        return self.largest - self.total / self.ranks


class OwnParts:
    """The mean seconds of a rank's steps, in equal parts of the run."""

    def __init__(self, last_step: int) -> None:
        self._last = last_step
        parts = min(PARTS, last_step)
        self._steps, self._seconds = [0] * parts, [0.0] * parts

    def add(self, step: int, steps: int, seconds: float) -> None:
        """Add `steps` steps up to `step` that took `seconds` together."""
        part = min(len(self._steps) - 1, (step - (steps + 1) // 2) * len(self._steps) // self._last)
        self._steps[part] += steps
        self._seconds[part] += seconds

    def means(self) -> list[float]:
        return [
            seconds / steps if steps else math.nan for steps, seconds in zip(self._steps, self._seconds, strict=True)
        ]


@dataclass
class Parts:
    """Sums over consecutive steps. There are never many: when there would be, neighbours are joined."""

    parts: list[tuple[int, Seconds]] = field(default_factory=list)
    length: int = 1

    def add(self, _: int, seconds: Seconds) -> None:
        if not self.parts or self.parts[-1][0] == self.length:
            if len(self.parts) == 2 * PARTS:
                self.parts = [_joined(self.parts[i : i + 2]) for i in range(0, 2 * PARTS, 2)]
                self.length *= 2
            self.parts.append((0, {}))
        steps, sums = self.parts[-1]
        add_seconds(sums, seconds)
        self.parts[-1] = steps + 1, sums

    def merged(self) -> list[tuple[int, Seconds]]:
        if len(self.parts) <= PARTS:
            return self.parts
        return [_joined(self.parts[i : i + 2]) for i in range(0, len(self.parts), 2)]


def _joined(parts: list[tuple[int, Seconds]]) -> tuple[int, Seconds]:
    sums: Seconds = {}
    for _, seconds in parts:
        add_seconds(sums, seconds)
    return sum(steps for steps, _ in parts), sums


def add_seconds(sums: Seconds, seconds: Seconds) -> None:
    for cause, value in seconds.items():
        sums[cause] = sums.get(cause, 0.0) + value
