"""Handles Ctrl-C: the first one lets all ranks finish their step and end together, the second one ends immediately."""

import os
import signal
from types import FrameType


class StopRequest:
    """A context manager that records SIGINT; calling it returns True once a stop was requested.

    This module imports nothing slow, because a rank creates the request before it imports torch.
    """

    def __init__(self, *, launched: bool = False) -> None:
        """A `launched` rank leaves the second Ctrl-C to its launcher, and also stops when the launcher is gone."""
        self._requested = False
        self._launcher = os.getppid() if launched else None

    def __enter__(self) -> "StopRequest":
        self._previous_handler = signal.signal(signal.SIGINT, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous_handler)

    def __call__(self) -> bool:
        return self._requested or (self._launcher is not None and os.getppid() != self._launcher)

    def _record(self, _: int, __: FrameType | None) -> None:
        if self._requested and self._launcher is None:
            raise KeyboardInterrupt
        self._requested = True
