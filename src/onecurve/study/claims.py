"""Which process works on which trial of a study. Several processes, also on several hosts, share the study's folder."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from optuna.storages.journal import JournalFileSymlinkLock

from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import OnecurveError

_SILENT_SECONDS = 60.0
"""A process on another host that has not renewed its claim for longer has ended."""


@dataclass(frozen=True)
class Claim:
    """Who works on a trial."""

    host: str
    process: int
    begun: str
    """When that process was started, as the kernel says it: process ids are used again."""


class Claims:
    """The claims of one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._own = Claim(socket.gethostname(), os.getpid(), _begun(os.getpid()))
        self._lock = JournalFileSymlinkLock(str(folder / "all"))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other process take a trial meanwhile."""
        self._lock.acquire()
        try:
            yield
        finally:
            with suppress(RuntimeError):  # it was held for so long that another process took it
                self._lock.release()

    def take(self, trial: int) -> None:
        """Claim a trial, or renew the claim."""
        staging = self._folder / f".{self._own.host}-{self._own.process}"
        staging.write_text(to_json(self._own))
        staging.replace(self._file(trial))

    def drop(self, trial: int) -> None:
        self._file(trial).unlink(missing_ok=True)

    def is_taken(self, trial: int) -> bool:
        """True if a process that lives works on a trial."""
        file = self._file(trial)
        try:
            claim = from_json(Claim, file.read_bytes(), str(file))
            renewed = file.stat().st_mtime
        except (OSError, OnecurveError):
            return False
        if claim.host == self._own.host:
            return _begun(claim.process) == claim.begun
        return self._now() - renewed < _SILENT_SECONDS

    def _now(self) -> float:
        """The time by the clock of the file system, which all hosts share."""
        probe = self._folder / f".{self._own.host}-{self._own.process}-time"
        probe.write_text("")
        with suppress(OSError):
            return probe.stat().st_mtime
        return time.time()

    def _file(self, trial: int) -> Path:
        return self._folder / f"{trial:05d}.json"


def _begun(process: int) -> str:
    """When a process of this host was started; empty if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
