"""Looks now and then which line of the user's code a rank is executing."""

import linecache
import random
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from onecurve.describe.record import CodeLine, LinesRecord
from onecurve.launch.position import line_number, user_frame

_SECONDS = 0.1
"""Mean time between two looks. It is drawn at random, because steps may be as long. A look takes some 20 µs, and more
if the model has filled the caches."""
_RECORD_SECONDS = 60.0
_MAX_LINES = 10
_MAX_TEXT = 160
_MAX_PLACES = 10_000


class LineSampler:
    """A thread that samples the main thread of this process, until it is stopped."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._functions: dict[tuple[str, int], str] = {}
        self._samples = 0
        self._stopped = threading.Event()
        self._recorded = time.monotonic()
        threading.Thread(target=self._run, name="onecurve lines", daemon=True).start()

    @property
    def is_due(self) -> bool:
        """True if it is time to record the samples."""
        return time.monotonic() - self._recorded >= _RECORD_SECONDS

    def record(self) -> LinesRecord:
        """The most frequent lines so far."""
        self._recorded = time.monotonic()
        counts = Counter(self._counts.copy())  # the thread goes on counting
        lines = [
            CodeLine(
                place=f"{Path(file).name}:{line}",
                function=self._functions[file, line],
                text=linecache.getline(file, line).strip()[:_MAX_TEXT],
                samples=count,
            )
            for (file, line), count in counts.most_common(_MAX_LINES)
        ]
        return LinesRecord(self._samples, tuple(lines))

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        main = threading.main_thread().ident or 0
        draw = random.Random()  # not the global one, which the user may have seeded
        while not self._stopped.wait(draw.uniform(0.2, 1.8) * _SECONDS):
            frame = user_frame(main)
            if frame is not None and len(self._counts) < _MAX_PLACES:
                place = frame.f_code.co_filename, line_number(frame)
                self._functions[place] = _function(frame)
                self._counts[place] += 1
                self._samples += 1


def _function(frame: FrameType) -> str:
    """The name of a frame's function; of a comprehension, that of the function around it."""
    while frame.f_code.co_name.startswith("<") and frame.f_back is not None:
        if frame.f_back.f_code.co_filename != frame.f_code.co_filename:
            break
        frame = frame.f_back
    return frame.f_code.co_name
