"""Images, sounds and other files with one class per folder."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from onecurve.data.file_source import IndexedSource
from onecurve.data.function_identity import Identity, function_identity
from onecurve.formats.file_format import BadFileError
from onecurve.formats.sample_folder import NAME, FolderFiles


class FolderSource(IndexedSource):
    """Each sample is a pair: the content of a file, and the number of its class."""

    def __init__(self, location: str, load: Callable[[bytes], Any], index: str | None) -> None:
        super().__init__(location, NAME, 1, index)
        self.window = max(1, len(self._index))  # all classes are shuffled together: their files are read one by one
        self._load = load
        self._folders: dict[int, FolderFiles] = {}

    @cached_property
    def classes(self) -> list[str]:
        """The names of the classes, by their numbers."""
        return [self._index.path(number) for number in range(len(self._index))]

    def read(self, piece: int, offset: int) -> Any:
        file = self._files(piece).file(offset)
        path = f"{self.classes[piece]}/{file.name}"
        content = self._storage.read(path, file.size + 1)
        if xxhash.xxh3_64_intdigest(content) != file.hash:
            raise BadFileError(
                f"{self._where.folder}/{path}: it was changed since it was indexed; call onecurve index again"
            )
        return self._load(content), piece

    def identity(self) -> list[Identity]:
        return [*super().identity(), function_identity(self._load)]

    def verify(self) -> None:
        found = {file.path: file for file in self._where.files()}
        known: set[str] = set()
        for piece in range(len(self._index)):
            files = self._files(piece)
            for offset in range(int(self.piece_sizes[piece])):
                file = files.file(offset)
                path = f"{self._index.path(piece)}/{file.name}"
                self._refuse_changed(path, file.size, file.stamp, found)
                known.add(path)
        self._refuse_new(found, known)

    def _files(self, piece: int) -> FolderFiles:
        if piece not in self._folders:
            stored = self._index.piece(piece)
            self._folders[piece] = FolderFiles(np.asarray(stored.details, np.uint64), stored.samples)
        return self._folders[piece]
