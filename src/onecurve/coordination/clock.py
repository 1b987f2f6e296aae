"""The clock by which leases expire."""

import time

_MAX_STEP_SECONDS = 0.5


class ServingClock:
    """Seconds during which this process was able to serve.

    If the process is stopped or starved for a while, the renewals of all hosts wait unread in their sockets, and a
    clock that jumps ahead would expire every lease. This one advances by at most half a second between two calls of
    `tick`. It never runs faster than real time, so no lease expires early.
    """

    def __init__(self) -> None:
        self._time = 0.0
        self._ticked = time.monotonic()

    def now(self) -> float:
        return self._time + min(time.monotonic() - self._ticked, _MAX_STEP_SECONDS)

    def tick(self) -> float:
        """Advance the clock, to be called many times per second; return the time."""
        self._time = self.now()
        self._ticked = time.monotonic()
        return self._time
