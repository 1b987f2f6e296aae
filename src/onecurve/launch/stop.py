"""Stop requests: the first signal ends the work after the current step; a second one, or Ctrl-C before the first step,
ends it immediately."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from onecurve.describe.errors import SignalName

STOP_SIGNALS: dict[int, SignalName] = {
    signal.SIGINT: "SIGINT",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
}
"""Signals that stop a run after the step that it is in."""


_SECONDS_TO_CLEAN_UP = 1.2
"""After this time the process ends, because the interrupt may be lost: Python ignores one that it raises in a
destructor or a callback, and a compiler runs many of these."""


def _end() -> None:
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h\n")  # a progress bar has hidden the cursor
    os._exit(128 + signal.SIGINT)


def stop_text(name: SignalName) -> str:
    """What a run answers to the first signal."""
    return f"{name}: the run ends after this step; a second signal ends it at once"


def early_stop_text(name: SignalName) -> str:
    """What a run answers to a signal before its first step."""
    return f"{name}: no step is done yet, so the run ends at once"


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
        self.has_begun: Callable[[], bool] = lambda: True
        """Returns False until there is something that a stop must wait for."""
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
        name, is_early = STOP_SIGNALS[number], number == signal.SIGINT and not self.has_begun()
        if self._signal is None and self._answers:
            text = early_stop_text(name) if is_early else stop_text(name)
            os.write(2, f"{text}\n".encode())  # print cannot be interrupted by itself
        if self._signal is not None or is_early:
            self.__exit__()
            if is_early:
                timer = threading.Timer(_SECONDS_TO_CLEAN_UP, _end)
                timer.daemon = True  # a process that ends before does not wait for it
                timer.start()
            os.kill(os.getpid(), number)  # to the previous handler
        self._signal = self._signal or STOP_SIGNALS[number]
