"""Where the time of some work goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Seconds by cause. What no cause is named for counts as `rest`."""

    def __init__(self, rest: str) -> None:
        self._rest = rest
        self._begin = time.perf_counter()
        self._seconds: dict[str, float] = {}

    @contextmanager
    def measure(self, cause: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[cause] = self._seconds.get(cause, 0.0) + time.perf_counter() - begin

    def seconds(self) -> dict[str, float]:
        rest = time.perf_counter() - self._begin - sum(self._seconds.values())
        return {**self._seconds, self._rest: rest}
