"""When the next snapshot in memory is due, on the first rank; it tells the others with the step."""

import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from onecurve.checkpoint.snapshot_interval import snapshot_interval

_RECENT = 20
"""Steps and snapshots whose median counts."""
_PRIOR_SECONDS = 600.0
"""A run that has just begun is assumed to fail this soon; the longer it runs without a failure, the later."""


class SnapshotSchedule:
    """Every n steps. If n is `auto`, it follows from the measured times and the failures so far."""

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
        self._copy_seconds: deque[float] = deque(maxlen=_RECENT)
        self._steps = 0
        """Steps since the last snapshot."""
        self.interval = 1
        """Steps between two snapshots, as it is now."""
        self._told = 0

    def due(self) -> bool:
        """Asked once per step: True if a snapshot is due after it."""
        now = self._clock()
        if self._last_step is not None:
            self._step_seconds.append(now - self._last_step)
        self._last_step = now
        self._steps += 1
        self._update(now)
        return self._steps >= self.interval

    def taken(self, seconds: float) -> None:
        """A snapshot was taken; `seconds`: how long the training waited for it."""
        self._steps = 0
        self._copy_seconds.append(seconds)

    def news(self) -> str:
        """How often snapshots are taken now, for a person; empty if it is as told before, or up to twice as often."""
        if self._told / 2 < self.interval <= self._told:
            return ""
        self._told = self.interval
        milliseconds = 1000 * statistics.median(self._copy_seconds)
        return f"every {self.interval} step{'s' * (self.interval > 1)}, {milliseconds:.1f} ms each"

    def _update(self, now: float) -> None:
        if self._every != "auto":
            self.interval = self._every
        elif self._copy_seconds and self._step_seconds:
            between_failures = (_PRIOR_SECONDS + now - self._begin) / (self._failures + 1)
            self.interval = snapshot_interval(
                statistics.median(self._copy_seconds), statistics.median(self._step_seconds), between_failures
            )
