"""Ctrl-C as a wish: the ranks finish their step together and end."""

import os
import signal
from types import FrameType


class Stop:
    """Asked for by SIGINT from the moment it is made. Imports nothing slow: a rank makes it before torch is loaded."""

    def __init__(self, *, launched: bool = False) -> None:
        """A `launched` rank also stops when its launcher is gone, rather than train on unwatched."""
        self._asked = False
        self._launcher = os.getppid() if launched else None
        signal.signal(signal.SIGINT, self._ask)

    def __call__(self) -> bool:
        return self._asked or (self._launcher is not None and os.getppid() != self._launcher)

    def _ask(self, _: int, __: FrameType | None) -> None:
        self._asked = True
