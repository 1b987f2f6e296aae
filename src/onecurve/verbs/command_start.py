"""When the command was started that this process runs."""

import os
import time
from pathlib import Path

_started: list[float] = []


def note_command() -> None:
    """Say that this process is a command: it was started when the process was."""
    _started[:] = [_process_start()]


def command_start() -> float:
    """When the command was started, in seconds since the epoch; now, if it is a call in a program."""
    return _started[0] if _started else time.time()


def _process_start() -> float:
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
    except (OSError, ValueError, IndexError):
        return time.time()
