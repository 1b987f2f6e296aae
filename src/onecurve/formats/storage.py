"""Files of data, on this host or wherever fsspec reaches: how they are listed and read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec
import xxhash

from onecurve.describe.errors import OnecurveError

_FILE_SCHEME = "file://"


@dataclass(frozen=True)
class DataFile:
    """A file of a folder."""

    path: str
    """Relative to the folder, with `/` between its parts."""
    size: int
    stamp: int
    """Another one if the file was written again: its time, or made from what the storage says about its content."""


class Storage:
    """A folder with data."""

    def __init__(self, location: str) -> None:
        """`location`: a folder, or a URL that fsspec knows."""
        local = location.removeprefix(_FILE_SCHEME)
        self._folder: Path | None = None if "://" in local else Path(local)
        self.location = location
        if self._folder is None:
            try:
                self._system, self._root = fsspec.core.url_to_fs(location.rstrip("/"))
            except (ImportError, ValueError) as error:
                raise OnecurveError(f"{location}: {error}") from None

    @property
    def is_local(self) -> bool:
        return self._folder is not None

    def files(self) -> Iterator[DataFile]:
        """All files below the folder, in no particular order. Those whose name, or whose folder's, begins with a dot or
        an underscore are left out."""
        if self._folder is not None:
            yield from self._local_files(self._folder)
            return
        with self._translated_errors(""):
            for path, about in self._system.find(self._root, detail=True).items():
                relative = path[len(self._root) :].lstrip("/")
                if relative and not _is_hidden(relative):
                    yield DataFile(relative, int(about["size"]), _stamp_of(about))

    def _local_files(self, folder: Path) -> Iterator[DataFile]:
        if not folder.is_dir():
            raise OnecurveError(f"{self.location}: there is no such folder")
        for parent, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not _is_hidden(name)]
            for name in names:
                path = Path(parent, name)
                if not _is_hidden(name) and path.is_file():
                    about = path.stat()
                    yield DataFile(path.relative_to(folder).as_posix(), about.st_size, about.st_mtime_ns)

    @contextmanager
    def open(self, path: str) -> Iterator[IO[bytes]]:
        """Open a file for reading; errors while it is read name it."""
        with self._translated_errors(path), self.opened(path) as file:
            yield file

    def opened(self, path: str) -> IO[bytes]:
        """Open a file for reading; whoever calls it closes it."""
        with self._translated_errors(path):
            if self._folder is not None:
                return (self._folder / path).open("rb")
            opened: IO[bytes] = self._system.open(f"{self._root}/{path}", "rb")
            return opened

    def read(self, path: str, limit: int) -> bytes:
        """Return the content of a file, at most so many bytes of it."""
        with self._translated_errors(path):
            if self._folder is None:
                with self.opened(path) as file:
                    return file.read(limit)
            descriptor = os.open(f"{self._folder}/{path}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(descriptor, limit)
            finally:
                os.close(descriptor)

    def local_path(self, path: str) -> Path:
        """Where a file of a local folder is."""
        assert self._folder is not None
        return self._folder / path

    @contextmanager
    def _translated_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = f"{self.location.rstrip('/')}/{path}" if path else self.location
            raise OnecurveError(f"{where}: it cannot be read ({error.strerror or error})") from None


class HashedStream:
    """Reads a file from its begin to its end, and hashes what it reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self._hash = file, xxhash.xxh3_64()
        self._is_finished = False

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self._hash.update(data)
        return data

    def finish(self) -> int:
        """Read what is left; return the hash of the whole file. After that, `file` may be read in any order."""
        while not self._is_finished and self.read(1 << 22):
            pass
        self._is_finished = True
        return self._hash.intdigest()


def _is_hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))


def _stamp_of(about: dict[str, Any]) -> int:
    known = about.get("ETag") or about.get("etag") or about.get("mtime") or about.get("LastModified") or about["size"]
    return xxhash.xxh3_64_intdigest(str(known).encode()) >> 1
