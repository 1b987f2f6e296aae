"""A store on any file system that fsspec supports: S3, GCS, or memory in tests.

Objects appear complete and cannot be renamed, so a checkpoint exists exactly while its root manifest exists: that
object is written last and deleted first.

Nothing keeps a rank of an earlier generation that is late from writing. A generation therefore begins with an object
that lists the checkpoints which exist; of those that are added later, only its own count.
"""

import errno
import json
import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Any

import fsspec

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.store import ROOT, sorted_checkpoint_names
from onecurve.describe.errors import OnecurveError
from onecurve.device.files import Bytes

_MARKER = re.compile(r"generation-(\d{8,})\.json")


class FsspecStore:
    """A `Store` at a URL such as `s3://bucket/run` or `memory://run`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._generation: str | None = None
        try:
            self._filesystem, self._folder = fsspec.core.url_to_fs(self._url)
        except (ImportError, ValueError) as error:
            raise OnecurveError(f"{url}: {error}") from None

    @property
    def where(self) -> str:
        return self._url

    def enter(self, generation: str) -> None:
        self._generation = generation

    def fence(self) -> None:
        with self._translated_errors(""):
            number, _ = self._newest_marker()
            content = json.dumps({"generation": self._generation, "names": self.names()}).encode()
            self._filesystem.pipe_file(self._marker_path(number + 1), content)
            for older in self._marker_numbers():
                if older <= number:
                    self._filesystem.rm_file(self._marker_path(older))

    def begin(self, name: str) -> None:
        pass  # object stores have no folders, only common prefixes of names

    def write(self, name: str, file: str, parts: Iterable[Bytes]) -> None:
        with self._translated_errors(f"{name}/{file}"), self._filesystem.open(self._path(name, file), "wb") as opened:
            for part in parts:
                opened.write(part)

    def commit(self, name: str, root: bytes) -> None:
        self._refuse_if_ended()
        with self._translated_errors(f"{name}/{ROOT}"):
            self._filesystem.pipe_file(self._path(name, ROOT), root)

    def abandon(self, name: str) -> None:
        with self._translated_errors(name):
            self._remove(self._path(name))

    def names(self) -> list[str]:
        with self._translated_errors(""):
            _, marker = self._newest_marker()
            present = [name for name in self._folders() if self._filesystem.exists(self._path(name, ROOT))]
        if marker is None:
            return present
        known = set(marker["names"])
        return [name for name in present if name in known or f"-{marker['generation']}" in name]

    def read(self, name: str, file: str, limit: int) -> bytes:
        data = self.open(name, file)
        if data.size > limit:
            raise CorruptedError(f"{self._url}/{name}/{file}: {data.size} bytes, must be at most {limit}")
        return bytes(data.read(0, data.size))

    def open(self, name: str, file: str) -> "FsspecFile":
        return FsspecFile(self._filesystem, self._path(name, file), posixpath.join(self._url, name, file))

    def retire(self, name: str) -> None:
        self._refuse_if_ended()
        with self._translated_errors(f"{name}/{ROOT}"):
            self._filesystem.rm_file(self._path(name, ROOT))

    def erase(self, name: str, files: Sequence[str]) -> None:
        with self._translated_errors(name):
            for file in files:
                if self._filesystem.exists(self._path(name, file)):
                    self._filesystem.rm_file(self._path(name, file))

    def clear(self) -> None:
        self._refuse_if_ended()
        with self._translated_errors(""):
            valid = set(self.names())
            for name in self._folders():
                if name not in valid:
                    self._remove(self._path(name))

    def _refuse_if_ended(self) -> None:
        """Raise OSError if another generation has begun."""
        with self._translated_errors(""):
            _, marker = self._newest_marker()
        if self._generation is not None and marker is not None and marker["generation"] != self._generation:
            raise OSError(errno.ESTALE, "another generation of the run writes there now", self._url)

    def _newest_marker(self) -> tuple[int, dict[str, Any] | None]:
        """The number and the content of the object with which the newest generation began; 0 and None if none did."""
        numbers = self._marker_numbers()
        if not numbers:
            return 0, None
        return numbers[-1], json.loads(self._filesystem.cat_file(self._marker_path(numbers[-1])))

    def _marker_numbers(self) -> list[int]:
        found = (_MARKER.fullmatch(entry) for entry in self._entries())
        return sorted(int(match[1]) for match in found if match)

    def _marker_path(self, number: int) -> str:
        return self._path(f"generation-{number:08d}.json")

    def _folders(self) -> list[str]:
        return sorted_checkpoint_names(self._entries())

    def _entries(self) -> list[str]:
        self._filesystem.invalidate_cache()
        try:
            entries = self._filesystem.ls(self._folder, detail=False)
        except FileNotFoundError:
            return []
        return [posixpath.basename(entry.rstrip("/")) for entry in entries]

    def _remove(self, path: str) -> None:
        if self._filesystem.exists(path):
            self._filesystem.rm(path, recursive=True)

    def _path(self, *parts: str) -> str:
        return posixpath.join(self._folder, *parts)

    def _translated_errors(self, path: str) -> "_TranslatedErrors":
        return _TranslatedErrors(posixpath.join(self._url, path))


class FsspecFile:
    """A `StoredFile` of which every read is a separate request."""

    def __init__(self, filesystem: Any, path: str, url: str) -> None:
        self._filesystem, self._path, self._url = filesystem, path, url
        with _TranslatedErrors(url):
            self.size: int = filesystem.size(path) or 0

    def read(self, begin: int, size: int) -> bytearray:
        end = begin + size
        if end > self.size:
            raise CorruptedError(f"{self._url}: {self.size} bytes, too short to read up to byte {end}")
        with _TranslatedErrors(self._url):
            content = bytearray(self._filesystem.cat_file(self._path, start=begin, end=end)) if size else bytearray()
        if len(content) != size:
            raise CorruptedError(f"{self._url}: got {len(content)} bytes at byte {begin}, expected {size}")
        return content

    def close(self) -> None:
        pass


class _TranslatedErrors:
    """Turns whatever an fsspec file system raises into an OSError or CorruptedError that names the URL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, FileNotFoundError):
            raise CorruptedError(f"{self._url}: not found") from None
        if isinstance(error, OSError) and error.errno == errno.EINVAL:  # a byte range beyond the object's end
            raise CorruptedError(f"{self._url}: too short for the requested byte range") from None
        if isinstance(error, Exception) and not isinstance(error, OnecurveError):
            raise OSError(0, f"{type(error).__name__}: {error}", self._url) from error
