"""Handles Ctrl-C: the first one lets all ranks finish their step and end together, the second one ends immediately."""

import os
import signal
from types import FrameType

from onecurve.describe.errors import SignalName

STOP_SIGNALS: dict[int, SignalName] = {
    signal.SIGINT: "SIGINT",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
}
"""Signals that stop a run after the step that it is in."""


class StopRequest:
    """A context manager that records signals; calling it returns True once a stop was requested.

    This module imports nothing slow, because a rank creates the request before it imports torch.
    """

    def __init__(self, *, launched: bool = False, alone: bool = False) -> None:
        """A `launched` rank leaves the second signal to its launcher, and also stops when the launcher is gone.

        Only a process that is `alone` handles all signals. A rank with a launcher, torchrun included, must end at once
        on SIGTERM, because a launcher sends it to the other ranks when one has failed.
        """
        self._signal: SignalName | None = None
        self._signals = tuple(STOP_SIGNALS) if alone else (signal.SIGINT,)
        self._launcher = os.getppid() if launched else None

    def __enter__(self) -> "StopRequest":
        self._previous_handlers = {number: signal.signal(number, self._record) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self._signal is not None or self._launcher_is_gone

    @property
    def signal(self) -> SignalName:
        """The signal that requested the stop; another rank may have received it."""
        return self._signal or ("SIGKILL" if self._launcher_is_gone else "SIGINT")

    @property
    def _launcher_is_gone(self) -> bool:
        return self._launcher is not None and os.getppid() != self._launcher

    def _record(self, number: int, _: FrameType | None) -> None:
        if self._signal is not None and self._launcher is None:
            self.__exit__()
            os.kill(os.getpid(), number)  # to the previous handler
        self._signal = self._signal or STOP_SIGNALS[number]
