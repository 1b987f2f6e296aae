"""The temporary folder of one start: it disappears with the processes of the start, also if they are killed."""

import fcntl
import multiprocessing
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "onecurve-start-"
_LOCK = "lock"


def new_scratch() -> Path:
    """The path of a new temporary folder. It does not exist yet."""
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{secrets.token_hex(8)}"


class Scratch:
    """A temporary folder, as the process knows it that makes it. A lock says that this process still lives."""

    def __init__(self, path: Path) -> None:
        _remove_abandoned()
        self.path = path
        self.path.mkdir(mode=0o700)
        self._lock = (self.path / _LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        remove_scratch(self.path)
        self._lock.close()


def remove_scratch(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def use_scratch(path: Path) -> None:
    """Let Python's multiprocessing put its files there: the sockets through which loader processes pass tensors on.

    A process that is killed, or ends without Python's own cleanup, leaves them behind.
    """
    multiprocessing.current_process()._config["tempdir"] = str(path)  # type: ignore[attr-defined]


def scratch_folder() -> Path | None:
    """The folder of the start that this process belongs to; None if it belongs to none."""
    path = multiprocessing.current_process()._config.get("tempdir")  # type: ignore[attr-defined]
    return Path(path) if path is not None and Path(path).name.startswith(_PREFIX) else None


def _remove_abandoned() -> None:
    """Remove the folders of starts that were killed together with all their processes."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), (path / _LOCK).open("r+") as lock:
            if path.stat().st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_scratch(path)
