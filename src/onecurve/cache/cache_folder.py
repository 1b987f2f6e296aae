"""The folder of a cache. One process, the fetcher, adds and removes files; all others on the host read them.

A file is written elsewhere and then renamed, so that it is there completely or not at all, whoever is killed and when.
A reader asks for a file by a small file with the wish. Names are hashes, so nothing is written outside the folder.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from onecurve.cache.remote_file import RemoteFile
from onecurve.describe.errors import OnecurveError

_OWN_SECONDS = 2.0
"""Readers that look whether somebody fetches hold the lock for a moment."""


class CacheFolder:
    """The files of a cache, on a disk of this host."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files, self._parts = path / "files", path / "parts"
        self._wishes, self._failures = path / "wishes", path / "failures"
        self._lock = path / "lock"
        try:
            for folder in (self._files, self._parts, self._wishes, self._failures):
                folder.mkdir(parents=True, exist_ok=True)
            self._lock.touch()
        except OSError as error:
            raise OnecurveError(f"Cache: {path} cannot be written ({error.strerror or error})") from None

    # For readers

    def opened(self, file: RemoteFile) -> IO[bytes] | None:
        """Open a file, or return None if it is not there."""
        try:
            found = self._file(file.key).open("rb")
        except FileNotFoundError:
            return None
        if os.fstat(found.fileno()).st_size != file.size:  # the host has crashed before it was on the disk
            found.close()
            return None
        return found

    def wish(self, file: RemoteFile) -> None:
        """Ask the fetcher for a file."""
        wish = self._wishes / file.key
        if not wish.exists():
            staging = self._wishes / f".{file.key}-{os.getpid()}"
            staging.write_bytes(msgspec.json.encode(file))
            staging.replace(wish)

    def failure(self, file: RemoteFile) -> str:
        """Why the file cannot be fetched; empty if nothing is known against it."""
        try:
            return (self._failures / file.key).read_text()
        except FileNotFoundError:
            return ""

    @property
    def has_fetcher(self) -> bool:
        """True while a process fetches files."""
        with self._lock.open() as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    # For the fetcher

    def own(self) -> IO[bytes]:
        """Become the process that fetches, until the returned file is closed. Remove what an earlier one has left."""
        opened, end = self._lock.open("rb"), time.monotonic() + _OWN_SECONDS
        while not _try_lock(opened):
            if time.monotonic() > end:
                opened.close()
                raise OnecurveError(
                    f"Cache: {self.path} is used by another run on this host; give each run a folder of its own"
                )
            time.sleep(0.01)
        for folder in (self._parts, self._wishes, self._failures):
            for left in folder.iterdir():
                left.unlink(missing_ok=True)
        return opened

    def sizes(self) -> dict[str, int]:
        """The bytes of each file, by its key."""
        return {path.name: path.stat().st_size for path in self._files.glob("??/*")}

    def wishes(self) -> Iterator[RemoteFile]:
        """What readers wait for, or have waited for."""
        with os.scandir(self._wishes) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".")]
        for name in names:
            with suppress(FileNotFoundError, msgspec.DecodeError):
                yield msgspec.json.decode((self._wishes / name).read_bytes(), type=RemoteFile)

    def part(self, key: str) -> Path:
        """Where a file is while it is fetched."""
        return self._parts / key

    def commit(self, key: str) -> None:
        """The file is complete."""
        target = self._file(key)
        target.parent.mkdir(exist_ok=True)
        self.part(key).replace(target)
        self.settle(key)

    def settle(self, key: str, failure: str = "") -> None:
        """Take a wish back, which is fulfilled or cannot be."""
        if failure:
            (self._failures / key).write_text(failure)
        (self._wishes / key).unlink(missing_ok=True)

    def has(self, file: RemoteFile) -> bool:
        """True if a file is there completely."""
        try:
            return self._file(file.key).stat().st_size == file.size
        except FileNotFoundError:
            return False

    def remove(self, key: str) -> None:
        """Remove a file. Who has it open can still read it."""
        self._file(key).unlink(missing_ok=True)

    def committed(self, key: str) -> Path:
        """Where a file is once it is complete."""
        return self._file(key)

    def _file(self, key: str) -> Path:
        return self._files / key[:2] / key


def _try_lock(opened: IO[bytes]) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
