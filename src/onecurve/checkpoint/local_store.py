"""A store in a folder of a file system. A checkpoint is synced to disk in a staging folder; a rename makes it exist.

The order of a save: every file is written and synced, then the entry of the staging folder that names it; then the
same for the root manifest; then the staging folder is renamed to the checkpoint's name; then the parent folder is
synced. A crash at any point leaves all earlier checkpoints, and possibly the new one.

What a generation writes or removes passes through a folder of its own. Whoever begins the next generation renames that
folder away: a rank of the earlier one that is late, for example because it was cut off, can then neither make a
checkpoint exist nor end the existence of one.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.store import ROOT, sorted_checkpoint_names
from onecurve.device.files import Bytes, sync_folder, write_new_file

_STAGING_SUFFIX, _RETIRED_SUFFIX = ".part", ".gone"
_GENERATION, _ENDED = ".generation-", ".ended-"
"""Begin the names of the folders of the generation that writes, and of those that were ended."""
_CORRUPTION_ERRNOS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EIO)
"""Errors that mean the file itself is missing, not regular, or lost by the disk. Other errors may be temporary."""


class LocalStore:
    """A `Store` in a folder that all hosts share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: Path | None = None
        """The folder of this generation; None if there is only one writer, as in `export`."""

    @property
    def where(self) -> str:
        return str(self._folder)

    def enter(self, generation: str) -> None:
        self._own = self._folder / f"{_GENERATION}{generation}"

    def fence(self) -> None:
        assert self._own is not None
        self._make_folder()
        for entry in os.scandir(self._folder):
            if entry.name.startswith(_GENERATION) and entry.path != str(self._own):
                os.rename(entry.path, self._folder / f"{_ENDED}{entry.name.removeprefix(_GENERATION)}")
        self._own.mkdir(exist_ok=True)
        sync_folder(self._folder)
        # On a network file system, a host may still know an ended folder by its old name: what is in it must go too.
        for entry in os.scandir(self._folder):
            if entry.name.startswith(_ENDED):
                shutil.rmtree(entry.path, ignore_errors=True)

    def begin(self, name: str) -> None:
        if self._own is None:
            self._make_folder()
        self._staging_folder(name).mkdir()

    def write(self, name: str, file: str, parts: Iterable[Bytes]) -> None:
        folder = self._staging_folder(name)
        if not folder.is_dir():
            raise OSError(errno.ENOENT, "folder not found; all hosts must share this folder", str(folder))
        write_new_file(folder / file, parts)
        sync_folder(folder)

    def commit(self, name: str, root: bytes) -> None:
        self.write(name, ROOT, [root])
        staging = self._staging_folder(name)
        staging.rename(self._folder / name)
        sync_folder(self._folder)
        sync_folder(staging.parent)

    def abandon(self, name: str) -> None:
        shutil.rmtree(self._staging_folder(name), ignore_errors=True)

    def names(self) -> list[str]:
        try:
            folders = [entry.name for entry in os.scandir(self._folder) if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return sorted_checkpoint_names(folders)

    def read(self, name: str, file: str, limit: int) -> bytes:
        data = self.open(name, file)
        try:
            if data.size > limit:
                raise CorruptedError(f"{self._folder / name / file}: {data.size} bytes, must be at most {limit}")
            return bytes(data.read(0, data.size))
        finally:
            data.close()

    def open(self, name: str, file: str) -> "LocalFile":
        return LocalFile(self._folder / name / file)

    def retire(self, name: str) -> None:
        (self._folder / name).rename(self._retired_folder(name))
        sync_folder(self._folder)

    def erase(self, name: str, files: Sequence[str]) -> None:
        for file in files:
            (self._retired_folder(name) / file).unlink(missing_ok=True)

    def clear(self) -> None:
        for folder in {self._folder, self._own or self._folder}:  # in the first one, those of a single writer
            if not folder.is_dir():
                continue
            for entry in os.scandir(folder):
                name, suffix = os.path.splitext(entry.name.removeprefix("."))
                leftover = entry.name.startswith(".") and suffix in (_STAGING_SUFFIX, _RETIRED_SUFFIX)
                if leftover and sorted_checkpoint_names([name]):
                    shutil.rmtree(entry.path, ignore_errors=True)

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self._folder.parent)

    def _staging_folder(self, name: str) -> Path:
        return (self._own or self._folder) / f".{name}{_STAGING_SUFFIX}"

    def _retired_folder(self, name: str) -> Path:
        return (self._own or self._folder) / f".{name}{_RETIRED_SUFFIX}"


class LocalFile:
    """A regular file that is not trusted: symbolic links are refused, and a named pipe cannot block the reader."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _CORRUPTION_ERRNOS:
                raise CorruptedError(f"{path}: cannot be read ({error.strerror})") from None
            raise
        status = os.fstat(self._handle)
        self.size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise CorruptedError(f"{path}: not a regular file")

    def read(self, begin: int, size: int) -> bytearray:
        content = bytearray(size)
        rest = memoryview(content)
        while rest:
            try:
                count = os.preadv(self._handle, [rest], begin + size - len(rest))
            except OSError as error:
                if error.errno in _CORRUPTION_ERRNOS:
                    raise CorruptedError(f"{self._path}: cannot be read ({error.strerror})") from None
                raise
            if not count:
                raise CorruptedError(f"{self._path}: {self.size} bytes, too short to read up to byte {begin + size}")
            rest = rest[count:]
        return content

    def close(self) -> None:
        os.close(self._handle)
