"""When the next snapshot in memory is due, on the first rank; it tells the others with the step."""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onecurve.checkpoint.snapshot_interval import snapshot_interval
from onecurve.describe.units import counted

_RECENT = 20
"""Steps and snapshots whose median counts."""
_FIRST_FACTOR = 4
"""The second snapshot comes so many times earlier than the first one suggests."""
_PRIOR_SECONDS = 600.0
"""A run that has just begun is assumed to fail this soon; the longer it runs without a failure, the later."""


@dataclass
class _TakenSnapshot:
    """A snapshot, and the steps that were done while it was on its way to another host."""

    copy_seconds: float
    steps: int = 0
    step_seconds: float = 0.0

    def cost(self, step: float) -> float:
        """Seconds that the training lost by it, if a step otherwise takes `step` seconds."""
        return self.copy_seconds + max(0.0, self.step_seconds - self.steps * step)


class SnapshotSchedule:
    """Every n steps. If n is `auto`, it follows from the measured times and the failures so far.

    Sending a snapshot to another host takes time of the processor and of the network: what steps lose by it counts.
    """

    def __init__(
        self,
        every: int | Literal["auto"],
        failures: int = 0,
        earlier_seconds: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`failures`: of this run so far. `earlier_seconds`: how long the run's earlier generations took."""
        self._every, self._failures = every, failures
        self._clock = clock
        self._begin = clock() - earlier_seconds
        self._last_step: float | None = None
        self._step_seconds: deque[float] = deque(maxlen=_RECENT)
        """Of steps during which no snapshot was on its way."""
        self._taken: deque[_TakenSnapshot] = deque(maxlen=_RECENT)
        self._is_on_its_way = False
        self._steps = 0
        """Steps since the last snapshot."""
        self.interval = 1
        """Steps between two snapshots, as it is now."""
        self._told = 0

    def due(self, is_on_its_way: bool = False) -> bool:
        """Asked once per step: True if a snapshot is due after it.

        `is_on_its_way`: the last snapshot is still being sent to another host.
        """
        now = self._clock()
        if self._last_step is not None:
            self._count(now - self._last_step)
        self._last_step, self._is_on_its_way = now, is_on_its_way
        self._steps += 1
        self._update(now)
        is_known = self._every != "auto" or not self._taken or bool(self._step_seconds)
        return is_known and self._steps >= self.interval

    def taken(self, seconds: float, is_on_its_way: bool = False) -> None:
        """A snapshot was taken. `seconds`: how long the training waited for it. `is_on_its_way`: it is being sent."""
        self._steps, self._is_on_its_way = 0, is_on_its_way
        self._taken.append(_TakenSnapshot(seconds))
        if self._last_step is not None:
            self._last_step += seconds

    def news(self) -> str:
        """How often snapshots are taken now, for a person; empty if it is as told before, or up to twice as often."""
        if self._told / 2 < self.interval <= self._told:
            return ""
        self._told = self.interval
        return f"every {counted(self.interval, 'step')}, {1000 * self._cost():.1f} ms each"

    def _count(self, seconds: float) -> None:
        if self._is_on_its_way and self._taken:  # a checkpoint that is being sent counts as the last snapshot
            self._taken[-1].steps += 1
            self._taken[-1].step_seconds += seconds
        else:
            self._step_seconds.append(seconds)

    def _cost(self) -> float:
        step = statistics.median(self._step_seconds) if self._step_seconds else math.inf
        return statistics.median(taken.cost(step) for taken in self._taken)

    def _update(self, now: float) -> None:
        if self._every != "auto":
            self.interval = self._every
        elif self._taken and self._step_seconds:
            between_failures = (_PRIOR_SECONDS + now - self._begin) / (self._failures + 1)
            step = statistics.median(self._step_seconds)
            self.interval = snapshot_interval(self._cost(), step, between_failures)
            if len(self._taken) == 1:  # it has also allocated memory and made connections
                self.interval = math.ceil(self.interval / _FIRST_FACTOR)
