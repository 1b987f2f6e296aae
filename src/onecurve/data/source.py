"""Samples that belong to pieces, as a map-style dataset, and what can be made of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onecurve.cache.cached_files import CachedFiles
from onecurve.data.file_table import FileTable
from onecurve.data.function_identity import Identity, function_identity
from onecurve.data.order import Order
from onecurve.data.packing import Packing
from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import SKIPPED


class Source:
    """Samples that belong to pieces, which are shuffled among each other, and inside windows of some of them.

    `len(source)` and `source[i]` work as for any dataset of PyTorch.
    """

    has_end = True
    """False for a stream."""
    note = ""
    """What a person should know about it."""

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

    def remote_files(self) -> list[FileTable]:
        """The files that can be cached."""
        return []

    def use_cache(self, files: CachedFiles) -> None:
        """Read remote files from a cache from now on."""

    def keep_states(self, folder: Path) -> None:
        """Store in this folder what lets a stream continue."""

    def verify(self) -> None:
        """Compare all files with the index. Raises an OnecurveError that names one that is missing or has changed."""

    def identity(self) -> list[Identity]:
        """What decides which samples there are: the files, then each function."""
        raise NotImplementedError

    def index_path(self) -> Path:
        """The file of the index. What is found out about the samples is stored beside it."""
        raise NotImplementedError

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

    def packed(self, length: int, *, separate: bool = False) -> "PackedSource":
        """Return a source whose samples are sequences of `length` tokens, cut from concatenated documents.

        The samples of this source must be documents: lists, arrays or tensors of token numbers. End each document with
        an end-of-document token. Each new sample is a pair: `length` tokens, and the tokens that follow each. The
        documents of a file are concatenated in its order, and what is left at its end is dropped. The lengths of all
        documents are counted at the first use, and stored beside the index of the data.

        Args:
            length: Tokens of a sample.
            separate: Keep documents separate. The input is then a dict of `input_ids`, `position_ids`, which begin
                anew with each document, and `attention_mask`, true where a token may attend to another: itself or an
                earlier one of its document. The target of a document's last token is -100, which
                `oc.loss.next_token` ignores. Default: False.

        Example::

            oc.data.jsonl("corpus/").map(lambda line: tokenizer.encode(line["text"])).packed(2048)
        """
        return PackedSource(self, Packing(self, length, separate))


class MappedSource(Source):
    """Samples of another source, each changed by a function."""

    def __init__(self, source: Source, function: Callable[[Any], Any]) -> None:
        super().__init__(source.piece_sizes, source.window)
        self._source, self._function = source, function
        self.has_end, self.note = source.has_end, source.note

    def __len__(self) -> int:
        return len(self._source)

    def read(self, piece: int, offset: int) -> Any:
        return self._changed(self._source.read(piece, offset))

    def read_at(self, index: int) -> Any:
        return self._changed(self._source.read_at(index))

    def _changed(self, value: Any) -> Any:
        return value if value is SKIPPED else self._function(value)

    def order(self, seed: int) -> Order:
        return self._source.order(seed)

    def identity(self) -> list[Identity]:
        return [*self._source.identity(), function_identity(self._function)]

    def index_path(self) -> Path:
        return self._source.index_path()

    def remote_files(self) -> list[FileTable]:
        return self._source.remote_files()

    def use_cache(self, files: CachedFiles) -> None:
        self._source.use_cache(files)

    def keep_states(self, folder: Path) -> None:
        self._source.keep_states(folder)

    def verify(self) -> None:
        self._source.verify()


class FilteredSource(MappedSource):
    """Samples of another source, without those that a function drops."""

    def _changed(self, value: Any) -> Any:
        return value if value is not SKIPPED and self._function(value) else SKIPPED


class PackedSource(Source):
    """Documents of another source, concatenated and cut."""

    def __init__(self, source: Source, packing: Packing) -> None:
        super().__init__(packing.sizes, source.window)
        self._source, self._packing = source, packing

    def read(self, piece: int, offset: int) -> Any:
        return self._packing.read(piece, offset)

    def identity(self) -> list[Identity]:
        return [*self._source.identity(), self._packing.identity]

    def index_path(self) -> Path:
        return self._source.index_path()

    def verify(self) -> None:
        self._source.verify()

    def remote_files(self) -> list[FileTable]:
        return self._source.remote_files()

    def use_cache(self, files: CachedFiles) -> None:
        self._source.use_cache(files)
