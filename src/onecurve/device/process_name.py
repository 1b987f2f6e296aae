"""The name of this process in `ps`, `top` and `pkill`."""

import ctypes

_PR_SET_NAME = 15  # option of Linux's prctl: the name of the calling thread, at most 15 bytes


def set_process_name(name: str) -> None:
    """Give this process a name, for example `oc-rank-3`. To be called by its main thread."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15])
