"""Files of data, on this host or wherever fsspec reaches: how they are listed and read."""

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import fsspec
import xxhash

from onecurve.describe.errors import OnecurveError
from onecurve.formats.retry import may_pass, retried

_FILE_SCHEME = "file://"
_BUFFER_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 24


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
        self._process = -1  # connections have threads: they are made when they are needed, after forks
        scheme = location.partition("://")[0]
        if self._folder is None and scheme not in fsspec.available_protocols():
            raise OnecurveError(f"{location}: fsspec knows no protocol {scheme!r}")

    def _connect(self) -> tuple[Any, str]:
        """The file system of fsspec, and the folder in it. A process that was forked needs one of its own."""
        if self._process != os.getpid():
            try:
                self._system, self._root = fsspec.core.url_to_fs(self.location.rstrip("/"))
            except (ImportError, ValueError) as error:
                raise OnecurveError(f"{self.location}: {error}") from None
            self._process = os.getpid()
        return self._system, self._root

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_process": -1, "_system": None}

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
            system, root = self._connect()
            found = retried(lambda: system.find(root, detail=True), self.location)
            for path, about in found.items():
                relative = path[len(root) :].lstrip("/")
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
            return io.BufferedReader(_RemoteStream(self, path, self.size(path)), _BUFFER_BYTES)

    def size(self, path: str) -> int:
        """The bytes of a remote file."""
        system, root = self._connect()
        return int(retried(lambda: system.size(f"{root}/{path}"), f"{self.location}/{path}"))

    def stored(self, path: str) -> DataFile | None:
        """What is known about a remote file; None if there is none."""
        system, root = self._connect()

        def ask() -> DataFile | None:
            system.invalidate_cache()
            try:
                about = system.info(f"{root}/{path}")
            except FileNotFoundError:
                return None
            return DataFile(path, int(about["size"]), _stamp_of(about))

        with self._translated_errors(path):
            return retried(ask, f"{self.location}/{path}")

    def download(self, file: DataFile, target: Path) -> None:
        """Copy a remote file, completely or not at all. Several processes may do so at the same time."""
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, staging = tempfile.mkstemp(dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as opened:
                for begin in range(0, file.size, _BLOCK_BYTES):
                    opened.write(self.between(file.path, begin, min(begin + _BLOCK_BYTES, file.size)))
            Path(staging).replace(target)
        except BaseException:
            Path(staging).unlink(missing_ok=True)
            raise

    def upload(self, source: Path, path: str) -> None:
        """Write a remote file."""
        system, root = self._connect()
        with self._translated_errors(path):
            retried(lambda: system.put_file(str(source), f"{root}/{path}"), f"{self.location}/{path}")

    def between(self, path: str, begin: int, end: int) -> bytes:
        """Return these bytes of a remote file."""
        system, root = self._connect()

        def ask() -> bytes:
            data: bytes = system.cat_file(f"{root}/{path}", start=begin, end=end)
            if len(data) != end - begin:
                system.invalidate_cache()
                if (size := system.size(f"{root}/{path}")) < end:
                    raise OnecurveError(f"{self.location}/{path}: it has {size:,} bytes, and had {end:,} before")
                raise EOFError(f"{len(data):,} bytes instead of {end - begin:,}")
            return data

        with self._translated_errors(path):
            return retried(ask, f"{self.location}/{path}")

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
        except OnecurveError:
            raise
        except Exception as error:
            if not isinstance(error, OSError) and not may_pass(error):
                raise
            where = f"{self.location.rstrip('/')}/{path}" if path else self.location
            why = (error.strerror if isinstance(error, OSError) else None) or error
            raise OnecurveError(f"{where}: it cannot be read ({why})") from None


class _RemoteStream(io.RawIOBase):
    """A file of a store, which is asked for the parts that are read."""

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self._storage, self._path, self._size, self._at = storage, path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        data = self._storage.between(self._path, self._at, end)
        buffer[: len(data)] = data
        self._at = end
        return len(data)


class HashedStream:
    """Reads a file from its begin to its end, and hashes what it reads."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self._hash = file, xxhash.xxh3_64()
        self._is_finished = False

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self._hash.update(data)
        return data

    def skip(self, length: int) -> None:
        """Read so many bytes, or as many as there are, and drop them."""
        while length:
            length -= len(self.read(min(length, _BLOCK_BYTES))) or length

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
