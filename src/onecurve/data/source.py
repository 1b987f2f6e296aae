"""Samples in files, as a map-style dataset: what `oc.data.jsonl` and the others return."""

import os
import shlex
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from onecurve.data.order import Order
from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import BadFileError, FileFormat, SampleReader
from onecurve.formats.index_file import IndexFile
from onecurve.formats.indexing import DataLocation, default_index_path
from onecurve.formats.storage import DataFile, Storage

_SAFETY = 2
"""So many more pieces than a window has are kept open: a batch may have samples of two windows."""


class _Skipped:
    """What a source returns in place of a sample that is left out."""

    def __repr__(self) -> str:
        return "SKIPPED"


SKIPPED = _Skipped()


class Source:
    """Samples that belong to pieces, which are shuffled among each other, and inside windows of some of them.

    `len(source)` and `source[i]` work as for any dataset of PyTorch.
    """

    def __init__(self, piece_sizes: NDArray[np.int64], window: int) -> None:
        """`piece_sizes`: samples of each piece. `window`: so many pieces are shuffled together."""
        if window < 1:
            raise OnecurveError(f"data: window must be at least 1, got {window}")
        self.window = window
        self._set_sizes(piece_sizes)

    def _set_sizes(self, piece_sizes: NDArray[np.int64]) -> None:
        self.piece_sizes, self._ends = piece_sizes, np.cumsum(piece_sizes)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        value = self.read_at(index)
        if value is SKIPPED:
            raise OnecurveError(
                f"data: sample {index} is skipped; a job leaves such samples out of its batches, but here there is "
                "none in its place"
            )
        return value

    def read_at(self, index: int) -> Any:
        """Return a sample of all pieces, or `SKIPPED`."""
        piece = int(np.searchsorted(self._ends, index, side="right"))
        return self.read(piece, index - (int(self._ends[piece - 1]) if piece else 0))

    def read(self, piece: int, offset: int) -> Any:
        """Return a sample of a piece, or `SKIPPED`."""
        raise NotImplementedError

    def verify(self) -> None:
        """Compare all files with the index. Raises an OnecurveError that names one that is missing or has changed."""

    def order(self, seed: int) -> Order:
        """The order in which a job reads the samples."""
        return Order(self.piece_sizes.tolist(), seed, self.window)

    def map(self, function: Callable[[Any], Any]) -> "MappedSource":
        """Return a source whose samples are `function(sample)`.

        Example::

            oc.data.jsonl("data/").map(lambda line: (tokenize(line["text"]), line["label"]))
        """
        return MappedSource(self, function)

    def filter(self, keeps: Callable[[Any], bool]) -> "FilteredSource":
        """Return a source that leaves out the samples for which `keeps(sample)` is false.

        A step then has fewer samples, and its loss is divided by their true number; the records say how many were
        skipped. `len` still counts all, because that is known without reading them.

        Example::

            oc.data.jsonl("data/").filter(lambda line: line["language"] == "en")
        """
        return FilteredSource(self, keeps)


class MappedSource(Source):
    """Samples of another source, each changed by a function."""

    def __init__(self, source: Source, function: Callable[[Any], Any]) -> None:
        super().__init__(source.piece_sizes, source.window)
        self._source, self._function = source, function

    def read(self, piece: int, offset: int) -> Any:
        return self._changed(self._source.read(piece, offset))

    def read_at(self, index: int) -> Any:
        return self._changed(self._source.read_at(index))

    def _changed(self, value: Any) -> Any:
        return value if value is SKIPPED else self._function(value)

    def order(self, seed: int) -> Order:
        return self._source.order(seed)

    def verify(self) -> None:
        self._source.verify()


class FilteredSource(MappedSource):
    """Samples of another source, without those that a function drops."""

    def _changed(self, value: Any) -> Any:
        return value if value is not SKIPPED and self._function(value) else SKIPPED


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
        self._storage = Storage(self._where.folder)
        path = Path(index) if index is not None else default_index_path(self._where)
        if not path.exists():
            raise OnecurveError(
                f"{location}: it has no index yet; make it once, with `onecurve index {shlex.quote(location)}`"
            )
        self._index = IndexFile(path)
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

    def _refuse_new(self, found: Mapping[str, DataFile], known: Collection[str]) -> None:
        if new := sorted(found.keys() - known):
            others = f", nor are {len(new) - 1} others" if len(new) > 1 else ""
            raise OnecurveError(
                f"{self._where.folder}/{new[0]}: it is not in the index{others}; run `onecurve index "
                f"{self._where.folder}` again, which reads only what is new"
            )

    def _refuse_changed(self, path: str, size: int, stamp: int, found: Mapping[str, DataFile]) -> None:
        name, file = f"{self._where.folder}/{path}", found.get(path)
        if file is None:
            raise BadFileError(f"{name}: it is in the index, but it is not there")
        if file.size != size:
            raise BadFileError(f"{name}: it has {file.size:,} bytes, and had {size:,} when it was indexed")
        if file.stamp != stamp:
            raise BadFileError(f"{name}: it was written again since it was indexed; run `onecurve index` again")


class FileSource(IndexedSource):
    """Samples of files of one format."""

    def __init__(self, location: str, format: FileFormat, window: int, bad: str, index: str | None) -> None:
        """`bad`: what becomes of a sample that is damaged, `"stop"` or `"skip"`."""
        super().__init__(location, format.name, window, index)
        self._format, self._open = format, OpenPieces(window + _SAFETY)
        if bad not in ("stop", "skip"):
            raise OnecurveError(f"data: bad must be 'stop' or 'skip', got {bad!r}")
        self._skips_bad = bad == "skip"

    def read(self, piece: int, offset: int) -> Any:
        try:
            return self._sample(piece, offset)
        except BadFileError as error:
            if self._skips_bad:
                return SKIPPED
            raise BadFileError(f"{self._where.folder}/{self._index.path(piece)}: {error}") from None

    def _sample(self, piece: int, offset: int) -> Any:
        return self.reader(piece).read(offset)

    def reader(self, piece: int) -> SampleReader:
        """Return the reader of a piece."""
        return self._open.reader(piece, self._open_piece)

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
        file = self._storage.opened(piece.path)
        try:
            return self._format.open(file, piece.samples, np.asarray(piece.details, np.uint64)), file
        except BaseException:
            file.close()
            raise
