"""A store in anything fsspec knows: S3, GCS, a memory of tests. Objects appear whole, there is no rename: a checkpoint
exists as long as its root manifest does, which is put last and deleted first."""

import errno
import posixpath
from collections.abc import Iterable, Sequence
from typing import Any

import fsspec

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.manifest import ROOT
from onecurve.checkpoint.store import in_order
from onecurve.describe.errors import OnecurveError
from onecurve.device.files import Bytes


class FsspecStore:
    def __init__(self, url: str) -> None:
        """`url`: `s3://bucket/run`, `memory://run`"""
        self._url = url.rstrip("/")
        try:
            self._files, self._folder = fsspec.core.url_to_fs(self._url)
        except (ImportError, ValueError) as error:
            raise OnecurveError(f"{url}: {error}") from None

    @property
    def where(self) -> str:
        return self._url

    def begin(self, name: str) -> None:
        pass  # a folder is but the beginning of a name

    def write(self, name: str, file: str, parts: Iterable[Bytes]) -> None:
        with self._asked(f"{name}/{file}"), self._files.open(self._path(name, file), "wb") as opened:
            for part in parts:
                opened.write(part)

    def commit(self, name: str, root: bytes) -> None:
        with self._asked(f"{name}/{ROOT}"):
            self._files.pipe_file(self._path(name, ROOT), root)

    def abandon(self, name: str) -> None:
        with self._asked(name):
            self._remove(self._path(name))

    def names(self) -> list[str]:
        with self._asked(""):
            return [name for name in self._folders() if self._files.exists(self._path(name, ROOT))]

    def read(self, name: str, file: str, limit: int) -> bytes:
        data = self.open(name, file)
        if data.size > limit:
            raise CorruptedError(f"{self._url}/{name}/{file}: {data.size} bytes, more than any such file has")
        return bytes(data.read(0, data.size))

    def open(self, name: str, file: str) -> "FsspecFile":
        return FsspecFile(self._files, self._path(name, file), posixpath.join(self._url, name, file))

    def retire(self, name: str) -> None:
        with self._asked(f"{name}/{ROOT}"):
            self._files.rm_file(self._path(name, ROOT))

    def erase(self, name: str, files: Sequence[str]) -> None:
        with self._asked(name):
            for file in files:
                if self._files.exists(self._path(name, file)):
                    self._files.rm_file(self._path(name, file))

    def clear(self) -> None:
        with self._asked(""):
            for name in self._folders():
                if not self._files.exists(self._path(name, ROOT)):
                    self._remove(self._path(name))

    def _folders(self) -> list[str]:
        self._files.invalidate_cache()
        try:
            return in_order(
                posixpath.basename(entry.rstrip("/")) for entry in self._files.ls(self._folder, detail=False)
            )
        except FileNotFoundError:
            return []

    def _remove(self, path: str) -> None:
        if self._files.exists(path):
            self._files.rm(path, recursive=True)

    def _path(self, *parts: str) -> str:
        return posixpath.join(self._folder, *parts)

    def _asked(self, what: str) -> "_Asked":
        return _Asked(posixpath.join(self._url, what))


class FsspecFile:
    """Every read is a request of its own."""

    def __init__(self, files: Any, path: str, where: str) -> None:
        self._files, self._path, self._where = files, path, where
        with _Asked(where):
            self.size: int = files.size(path) or 0

    def read(self, begin: int, size: int) -> bytearray:
        if begin + size > self.size:
            raise CorruptedError(f"{self._where}: ends too early")
        with _Asked(self._where):
            content = (
                bytearray(self._files.cat_file(self._path, start=begin, end=begin + size)) if size else bytearray()
            )
        if len(content) != size:
            raise CorruptedError(f"{self._where}: {len(content)} bytes came, {size} were asked for")
        return content

    def close(self) -> None:
        pass


class _Asked:
    """Stores raise what they like; here it becomes an OSError that names the thing, so that callers know one kind."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, FileNotFoundError):
            raise CorruptedError(f"{self._what}: is not there") from None
        if isinstance(error, OSError) and error.errno == errno.EINVAL:  # a range that the object does not have
            raise CorruptedError(f"{self._what}: ends too early") from None
        if isinstance(error, Exception) and not isinstance(error, OnecurveError):
            raise OSError(0, f"{type(error).__name__}: {error}", self._what) from error
