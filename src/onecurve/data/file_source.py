"""Samples in files that have an index: what `oc.data.jsonl` and the others return."""

import os
import shlex
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np

from onecurve.cache.cached_files import CachedFiles
from onecurve.data.file_table import FileTable
from onecurve.data.function_identity import Identity
from onecurve.data.source import Source
from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import SKIPPED, BadFileError, FileFormat, SampleReader
from onecurve.formats.index_file import IndexFile
from onecurve.formats.indexing import DataLocation, index_path
from onecurve.formats.storage import DataFile, Storage

_SAFETY = 2
"""Number of pieces that are open besides those of a window: a batch may have samples of two windows."""


class OpenPieces:
    """The readers of the pieces that were used last."""

    def __init__(self, count: int) -> None:
        self._count, self._process = count, os.getpid()
        self._open: OrderedDict[int, tuple[SampleReader, IO[bytes]]] = OrderedDict()

    def __reduce__(self) -> tuple[type["OpenPieces"], tuple[int]]:
        return OpenPieces, (self._count,)  # another process opens files itself

    def reader(self, piece: int, open_piece: Callable[[int], tuple[SampleReader, IO[bytes]]]) -> SampleReader:
        if self._process != os.getpid():  # a forked process would share the position of a file with its parent
            self._open.clear()
            self._process = os.getpid()
        if piece in self._open:
            self._open.move_to_end(piece)
        else:
            self._open[piece] = open_piece(piece)
            if len(self._open) > self._count:
                _, (_, file) = self._open.popitem(last=False)
                file.close()
        return self._open[piece][0]


class IndexedSource(Source):
    """Samples of files that have an index."""

    def __init__(self, location: str, format: str, window: int, index: str | None) -> None:
        """`format`: its name. `index`: the file of the index; None for the one in the folder of the data."""
        self._where = DataLocation.at(location)
        self._command = f"onecurve index {shlex.quote(location)}" + (f" --out {shlex.quote(index)}" if index else "")
        self._storage = Storage(self._where.folder)
        path = Path(index) if index is not None else index_path(self._where)
        if path is None or not path.exists():
            raise OnecurveError(
                f"{location}: it has no index yet{f' ({index})' if index else ''}; make it once, with `{self._command}`"
            )
        self._index, self._index_path = IndexFile(path), path
        if self._index.format != format:
            raise OnecurveError(
                f"{location}: its files are of {self._index.format}, not of {format}; use the source for those"
            )
        pattern = self._index.settings.get("pattern", self._where.pattern)
        if pattern != self._where.pattern:
            raise OnecurveError(
                f"{location}: its index {path} is of the files {pattern!r}, not of {self._where.pattern!r}; make one "
                "for these with `onecurve index`"
            )
        super().__init__(self._index.samples.astype(np.int64), window)

    def identity(self) -> list[Identity]:
        return [Identity(f"the files of {self._where.folder}", self._index.identity)]

    def index_path(self) -> Path:
        return self._index_path

    def _refuse_new(self, found: Mapping[str, DataFile], known: Collection[str]) -> None:
        if new := sorted(found.keys() - known):
            others = f", nor are {len(new) - 1} others" if len(new) > 1 else ""
            raise OnecurveError(
                f"{self._where.folder}/{new[0]}: it is not in the index{others}; run `{self._command}` again, which "
                "reads only what is new"
            )

    def _refuse_changed(self, path: str, size: int, stamp: int, found: Mapping[str, DataFile]) -> None:
        name, file = f"{self._where.folder}/{path}", found.get(path)
        if file is None:
            raise BadFileError(f"{name}: it is in the index, but it is not there")
        if file.size != size:
            raise BadFileError(f"{name}: it has {file.size:,} bytes, and had {size:,} when it was indexed")
        if file.stamp != stamp:
            raise BadFileError(f"{name}: it was written again since it was indexed; run `{self._command}` again")


class FileSource(IndexedSource):
    """Samples of files of one format."""

    def __init__(self, location: str, format: FileFormat, window: int, bad: str, index: str | None) -> None:
        """`bad`: what becomes of a sample that is damaged, `"stop"` or `"skip"`."""
        super().__init__(location, format.name, window, index)
        self._format, self._open = format, OpenPieces(window + _SAFETY)
        if bad not in ("stop", "skip"):
            raise OnecurveError(f"data: bad must be 'stop' or 'skip', got {bad!r}")
        self._skips_bad = bad == "skip"
        self._cache: CachedFiles | None = None

    def read(self, piece: int, offset: int) -> Any:
        try:
            return self._sample(piece, offset)
        except BadFileError as error:
            if self._skips_bad:
                return SKIPPED
            raise BadFileError(f"{self._where.folder}/{self._index.path(piece)}: {error}") from None
        except OnecurveError as error:
            if type(error) is not OnecurveError:  # it names its file
                raise
            raise OnecurveError(f"{self._where.folder}/{self._index.path(piece)}: {error}") from None

    def identity(self) -> list[Identity]:
        files = super().identity()
        settings = {name: value for name, value in vars(self._format).items() if value is not None}
        return [*files, Identity("what is read of them", repr(settings))] if settings else files

    def _sample(self, piece: int, offset: int) -> Any:
        return self.reader(piece).read(offset)

    def reader(self, piece: int) -> SampleReader:
        """Return the reader of a piece."""
        return self._open.reader(piece, self._open_piece)

    def remote_files(self) -> list[FileTable]:
        return [] if self._storage.is_local else [self._table]

    def use_cache(self, files: CachedFiles) -> None:
        self._cache = None if self._storage.is_local else files

    @cached_property
    def _table(self) -> FileTable:
        return FileTable(self._where.folder, self._index, self.window)

    def verify(self) -> None:
        found = {file.path: file for file in self._where.files()}
        known: set[str] = set()
        for number in range(len(self._index)):
            piece = self._index.piece(number, with_details=False)
            self._refuse_changed(piece.path, piece.size, piece.stamp, found)
            known.add(piece.path)
        self._refuse_new(found, known)

    def _open_piece(self, number: int) -> tuple[SampleReader, IO[bytes]]:
        piece = self._index.piece(number)
        remote = self._cache
        file = self._storage.opened(piece.path) if remote is None else remote.opened(self._table.of_piece(number))
        try:
            return self._format.open(file, piece.samples, np.asarray(piece.details, np.uint64)), file
        except BaseException:
            file.close()
            raise
