"""Ctrl-C as a wish: the ranks finish their step together and end. A second one is an order."""

import os
import signal
from types import FrameType


class StopRequest:
    """Asked for by SIGINT while it is entered. Imports nothing slow: a rank makes it before torch is loaded."""

    def __init__(self, *, launched: bool = False) -> None:
        """A `launched` rank leaves the second Ctrl-C to its launcher, and stops when that is gone."""
        self._asked = False
        self._launcher = os.getppid() if launched else None

    def __enter__(self) -> "StopRequest":
        self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def __call__(self) -> bool:
        return self._asked or (self._launcher is not None and os.getppid() != self._launcher)

    def _ask(self, _: int, __: FrameType | None) -> None:
        if self._asked and self._launcher is None:
            raise KeyboardInterrupt
        self._asked = True
