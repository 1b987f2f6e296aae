"""Processes by their ids."""

import os
import signal
from contextlib import suppress
from pathlib import Path


def kill_process(pid: int) -> None:
    """Kill a process that may have ended already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def status_text(status: int) -> str:
    """How a process has ended, for a person: `SIGKILL`, or `status 1`."""
    return signal.Signals(-status).name if status < 0 else f"status {status}"


def is_stopped(pid: int) -> bool:
    """True if a signal such as SIGSTOP has stopped the process; a debugger that has stopped it does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:  # it has ended
        return False
