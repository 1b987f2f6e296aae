"""Ctrl-C as a wish: the ranks finish their step together and end."""

import signal
from types import FrameType


class Stop:
    """Asked for by SIGINT from the moment it is made. Imports nothing slow: a rank makes it before torch is loaded."""

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGINT, self._ask)

    def __call__(self) -> bool:
        return self._asked

    def _ask(self, _: int, __: FrameType | None) -> None:
        self._asked = True
