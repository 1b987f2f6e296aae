"""The seconds of a run since its last step, by cause."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from onecurve.train.step_report import StepReport


class StepAccount:
    """Adds to a step what happened between it and the step before, so that all seconds of a run are counted once."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._cpu = time.thread_time()
        self._seconds = _nothing()

    @contextmanager
    def measure(self, cause: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[cause] += time.perf_counter() - begin

    def complete(self, report: StepReport, rest: str) -> None:
        """Set the seconds of a step that has just ended. They add up to the time since the one before; what no cause is
        known for is called `rest`, which is `step` if a device still computes it."""
        now = time.perf_counter()
        known = dict(self._seconds) if rest == "step" else {**self._seconds, **report.marks.seconds}
        missing = now - self._since - sum(known.values())
        report.seconds, report.time = {**known, rest: known.get(rest, 0.0) + missing}, time.time()
        if rest == "other":
            report.cpu_seconds = time.thread_time() - self._cpu
        self._since, self._cpu, self._seconds = now, time.thread_time(), _nothing()

    def rest(self) -> dict[str, float]:
        """The seconds since the last step, at the end of a run. What is left is the time of its last checkpoint."""
        missing = time.perf_counter() - self._since - sum(self._seconds.values())
        return {**self._seconds, "checkpoint": self._seconds["checkpoint"] + missing}


def _nothing() -> defaultdict[str, float]:
    return defaultdict(float, {"data": 0.0, "evaluation": 0.0, "checkpoint": 0.0})
