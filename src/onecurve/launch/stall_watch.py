"""Ends a rank that makes no progress, for example because it waits for another rank that does something else."""

import os
import sys
import threading
import time
import traceback
from pathlib import Path
from types import TracebackType

from onecurve.launch.failure_report import RankStalledError, report_failure

_POLL_SECONDS = 0.5
_SHOWN_FRAMES = 8


class StallWatch:
    """A context in which the rank must call `progress` at least every `seconds`; otherwise its process ends.

    A collective that waits for another rank cannot be interrupted, so the process reports where it waits and exits. The
    launcher then ends the other ranks.
    """

    def __init__(self, what: str, seconds: float) -> None:
        self._what, self._seconds = what, seconds
        self._deadline = time.monotonic() + seconds
        self._left = threading.Event()
        self._watched = threading.get_ident()

    def progress(self) -> None:
        """Say that the rank has made progress."""
        self._deadline = time.monotonic() + self._seconds

    def __enter__(self) -> "StallWatch":
        threading.Thread(target=self._watch, daemon=True, name="onecurve stall watch").start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._left.set()

    def _watch(self) -> None:
        while not self._left.wait(_POLL_SECONDS):
            if time.monotonic() > self._deadline:
                error = RankStalledError(
                    f"{self._what}: no progress for {self._seconds:.0f} s; the rank waits in {_position(self._watched)}"
                )
                if not report_failure(error):
                    print(error, file=sys.stderr, flush=True)
                os._exit(1)


def _position(thread: int) -> str:
    """What a thread is executing, innermost function first."""
    stack = traceback.extract_stack(sys._current_frames()[thread])
    frames = [f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})" for frame in reversed(stack)]
    return ", called from ".join(frames[:_SHOWN_FRAMES])
