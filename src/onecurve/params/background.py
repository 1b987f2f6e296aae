"""Work that a thread does in order, while the training goes on."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

_LOOK_SECONDS = 0.02
"""Time between two looks at what may end a wait."""

Result = TypeVar("Result")


class ClosedError(Exception):
    """Nobody waits for the work any longer."""


class Background:
    """One thread, which begins with the first work."""

    def __init__(self, check: Callable[[], object]) -> None:
        """`check`: called by whoever waits; what it raises ends the waiting."""
        self._check = check
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._newest: Future[object] | None = None
        self._is_closed = False

    def begin(self, work: Callable[[], Result]) -> "Future[Result]":
        """Do this after all that was begun before. If an earlier work has raised an error, this raises it too."""
        future: Future[Result] = Future()
        before, self._newest = self._newest, future  # type: ignore[assignment]

        def do() -> None:
            try:
                if before is not None:
                    before.result()
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="onecurve rows ahead", daemon=True)
            self._thread.start()
        self._work.put(do)
        return future

    def wait(self, future: "Future[Result]") -> Result:
        """Wait for a result."""
        return wait_for(future, self._check)

    @property
    def is_idle(self) -> bool:
        """True if nothing was begun since the last time that all was done."""
        return self._newest is None

    def settle(self) -> None:
        """Wait for all that was begun."""
        if self._newest is not None:
            self.wait(self._newest)
            self._newest = None

    def check(self) -> None:
        """For work that waits: raises an error if it should end."""
        if threading.current_thread() is not self._thread:
            self._check()
        elif self._is_closed:
            raise ClosedError

    def close(self) -> None:
        """End the work, also if it is not done."""
        self._is_closed = True
        if self._thread is not None:
            self._work.put(self._stop)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        with suppress(ClosedError):
            while True:
                self._work.get()()

    def _stop(self) -> None:
        raise ClosedError


def wait_for(future: "Future[Result]", check: Callable[[], object]) -> Result:
    """Wait for a result. `check`: called every now and then; what it raises ends the waiting."""
    while True:
        try:
            return future.result(_LOOK_SECONDS)
        except TimeoutError:
            if future.done():  # it is the work that has raised it
                raise
        check()
