"""A store in a folder. What is written is on the disk before anything says so; a rename makes it exist.

The order: every file and then its folder's entry is synced; then the root manifest and the staging folder; then the
folder gets its name; then that name is synced. A crash anywhere leaves the old checkpoints and maybe the new one.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.manifest import ROOT
from onecurve.checkpoint.store import in_order
from onecurve.device.files import Bytes, sync_folder, write_new_file

_BEGUN, _RETIRED = ".part", ".gone"
_DAMAGE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EIO)
"""A file that is not there or not one, a disk that lost it. All else may pass: the file is not to blame."""


class LocalStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def where(self) -> str:
        return str(self._folder)

    def begin(self, name: str) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self._folder.parent)
        self._begun(name).mkdir()

    def write(self, name: str, file: str, parts: Iterable[Bytes]) -> None:
        folder = self._begun(name)
        if not folder.is_dir():
            raise OSError(errno.ENOENT, "is not there; all hosts must see the same folder", str(folder))
        write_new_file(folder / file, parts)
        sync_folder(folder)

    def commit(self, name: str, root: bytes) -> None:
        self.write(name, ROOT, [root])
        self._begun(name).rename(self._folder / name)
        sync_folder(self._folder)

    def abandon(self, name: str) -> None:
        shutil.rmtree(self._begun(name), ignore_errors=True)

    def names(self) -> list[str]:
        try:
            found = [entry.name for entry in os.scandir(self._folder) if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []
        return in_order(found)

    def read(self, name: str, file: str, limit: int) -> bytes:
        data = self.open(name, file)
        try:
            if data.size > limit:
                raise CorruptedError(f"{self._folder / name / file}: longer than {limit} bytes, which no such file is")
            return bytes(data.read(0, data.size))
        finally:
            data.close()

    def open(self, name: str, file: str) -> "LocalFile":
        return LocalFile(self._folder / name / file)

    def retire(self, name: str) -> None:
        (self._folder / name).rename(self._retired(name))
        sync_folder(self._folder)

    def erase(self, name: str, files: Sequence[str]) -> None:
        for file in files:
            (self._retired(name) / file).unlink(missing_ok=True)

    def clear(self) -> None:
        if not self._folder.is_dir():
            return
        for entry in os.scandir(self._folder):
            name, suffix = os.path.splitext(entry.name.removeprefix("."))
            if entry.name.startswith(".") and suffix in (_BEGUN, _RETIRED) and in_order([name]):
                shutil.rmtree(entry.path, ignore_errors=True)

    def _begun(self, name: str) -> Path:
        return self._folder / f".{name}{_BEGUN}"

    def _retired(self, name: str) -> Path:
        return self._folder / f".{name}{_RETIRED}"


class LocalFile:
    """A file that somebody else may have put there: no links, no pipes that never end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _DAMAGE:
                raise CorruptedError(f"{path}: cannot be read ({error.strerror})") from None
            raise
        found = os.fstat(self._handle)
        self.size = found.st_size
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise CorruptedError(f"{path}: not a file")

    def read(self, begin: int, size: int) -> bytearray:
        content = bytearray(size)
        rest = memoryview(content)
        while rest:
            try:
                count = os.preadv(self._handle, [rest], begin + size - len(rest))
            except OSError as error:
                if error.errno in _DAMAGE:
                    raise CorruptedError(f"{self._path}: cannot be read ({error.strerror})") from None
                raise
            if not count:
                raise CorruptedError(f"{self._path}: ends too early")
            rest = rest[count:]
        return content

    def close(self) -> None:
        os.close(self._handle)
