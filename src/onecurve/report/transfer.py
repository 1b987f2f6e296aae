"""Says how far something has come that reads or writes many bytes."""

import time
from collections.abc import Callable

from onecurve.describe.units import bytes_text

_FIRST_SECONDS = 2.0
"""What takes less time is not worth a line."""
_SECONDS_BETWEEN_LINES = 10.0


class Transfer:
    """Called with the bytes that are done and those there are in all, it passes a text on from time to time."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say`: called with texts such as `3.2 GiB of 12.0 GiB`."""
        self._say = say
        self._next: float | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._next is None:
            self._next = now + _FIRST_SECONDS
        elif now >= self._next:
            self._next = now + _SECONDS_BETWEEN_LINES
            self._say(f"{bytes_text(done)} of {bytes_text(total)}")
