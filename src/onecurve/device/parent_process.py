"""Lets a process end together with the process that started it."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # option of Linux's prctl: the signal that a process gets when its parent ends


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Get a signal when the parent ends. `parent`: the process id that the parent had before this process started."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before prctl was called
        os.kill(os.getpid(), number)
