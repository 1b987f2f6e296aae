"""Where a thread of this process is, in the user's words: a line of the user's code rather than of torch's."""

import sys
from pathlib import Path
from types import FrameType

_LIBRARIES = ("torch", "onecurve")
"""Packages whose lines are left out."""


def line_of(thread: int) -> str:
    """Return what a thread is executing: `train.py:12 in forward`. "" if the thread has ended."""
    frame = user_frame(thread)
    if frame is None:
        return ""
    return f"{Path(frame.f_code.co_filename).name}:{line_number(frame)} in {frame.f_code.co_name}"


def line_number(frame: FrameType) -> int:
    """Return the line that a frame is at; the function's first one while it enters or leaves, where Python has none."""
    return frame.f_lineno or frame.f_code.co_firstlineno


def user_frame(thread: int) -> FrameType | None:
    """Return the innermost frame of a thread that is the user's, or the innermost one if none is. None if the thread
    has ended."""
    innermost = frame = sys._current_frames().get(thread)
    files = [sys.modules[name].__file__ for name in _LIBRARIES if name in sys.modules]
    folders = tuple(str(Path(file).parent) for file in files if file is not None)
    while frame is not None and frame.f_code.co_filename.startswith(folders):
        frame = frame.f_back
    return frame or innermost
