"""Processes by their ids."""

import os
import signal
from contextlib import suppress


def kill_process(pid: int) -> None:
    """Kill a process that may have ended already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
