"""Processes by their ids."""

import os
import signal
from contextlib import suppress
from pathlib import Path


def kill_process(pid: int) -> None:
    """Kill a process that may have ended already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    """True if a signal such as SIGSTOP has stopped the process; a debugger that has stopped it does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:  # it has ended
        return False
