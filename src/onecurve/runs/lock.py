"""The lock of a run's folder: two runs in one folder would remove each other's files."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

from onecurve.describe.errors import OnecurveError

LOCK = ".lock"
_POLL_SECONDS = 0.01
_LEAST_PATIENCE = 0.1
"""`is_locked` holds a lock for a moment too."""


class RunLock:
    """Locks folders of this host until it is released or the process ends. Other hosts are not seen."""

    def __init__(self, *folders: Path, patience: float = 0.0) -> None:
        """`patience`: seconds to wait for another process that holds a lock."""
        self._handles: list[int] = []
        deadline = time.monotonic() + max(patience, _LEAST_PATIENCE)
        try:
            for folder in folders:
                self._handles.append(_lock(folder, deadline))
        except OnecurveError:
            self.release()
            raise

    def release(self) -> None:
        """Unlock explicitly: closing is not enough, because loader processes have inherited the handles."""
        for handle in self._handles:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)
        self._handles = []


def is_locked(folder: Path) -> bool | None:
    """Return True if a process of this host holds the lock of a folder, or None if that cannot be known."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return None
    else:
        fcntl.flock(handle, fcntl.LOCK_UN)
        return False
    finally:
        os.close(handle)


def _lock(folder: Path, deadline: float) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise OnecurveError(f"{folder}: cannot be written ({error.strerror}); give another --out") from None
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(handle)
                raise OnecurveError(
                    f"{folder}: another run is using it; wait until it ends, or give another --out"
                ) from None
            time.sleep(_POLL_SECONDS)
        except OSError:
            return handle  # a file system without locks
