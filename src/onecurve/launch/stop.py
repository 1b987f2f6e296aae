"""Stop requests: the first signal ends the work after the current step, the second one ends immediately."""

import os
import signal
from types import FrameType
from typing import Protocol

from onecurve.describe.errors import SignalName

STOP_SIGNALS: dict[int, SignalName] = {
    signal.SIGINT: "SIGINT",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
}
"""Signals that stop a run after the step that it is in."""


def stop_text(name: SignalName) -> str:
    """What a run answers to the first signal."""
    return f"{name}: the run ends after this step; a second signal ends it at once"


class Stop(Protocol):
    """Asked once per step whether to stop."""

    def __call__(self) -> bool:
        """True once a stop was requested."""

    @property
    def signal(self) -> SignalName:
        """The signal that requested it; another rank may have received it."""


class StopRequest:
    """A context manager that records signals, in a process that nobody forked; calling it returns True after one."""

    def __init__(self, *, alone: bool = False, answers: bool = False) -> None:
        """Only a process that is `alone` handles all signals. A rank of torchrun must end at once on SIGTERM, because
        torchrun sends it to the other ranks when one has failed. `answers`: with a line on stderr."""
        self._signal: SignalName | None = None
        self._answers = answers
        self._signals = tuple(STOP_SIGNALS) if alone else (signal.SIGINT,)

    def __enter__(self) -> "StopRequest":
        self._previous_handlers = {number: signal.signal(number, self._record) for number in self._signals}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self._signal is not None

    @property
    def signal(self) -> SignalName:
        return self._signal or "SIGINT"

    def _record(self, number: int, _: FrameType | None) -> None:
        if self._signal is not None:
            self.__exit__()
            os.kill(os.getpid(), number)  # to the previous handler
        elif self._answers:
            os.write(2, f"{stop_text(STOP_SIGNALS[number])}\n".encode())  # print cannot be interrupted by itself
        self._signal = self._signal or STOP_SIGNALS[number]
