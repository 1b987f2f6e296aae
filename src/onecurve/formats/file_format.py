"""What a format of data files must do: recognize a file, find its samples, and read one of them."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Protocol

import numpy as np

from onecurve.describe.errors import OnecurveError
from onecurve.formats.index_file import Numbers
from onecurve.formats.storage import HashedStream


class BadFileError(OnecurveError):
    """A file that is not what its index, or its format, says."""


class _Skipped:
    """What is returned in place of a sample that is left out."""

    def __repr__(self) -> str:
        return "SKIPPED"


SKIPPED = _Skipped()


@dataclass(frozen=True)
class FilePart:
    """A part of a file that is shuffled as one piece; most formats have one part per file."""

    samples: int
    details: Sequence[int] | Numbers = ()


class SampleReader(Protocol):
    """Reads samples of one piece."""

    def read(self, offset: int) -> Any:
        """Return a sample; `offset` counts those of the piece. Raises a BadFileError if it is damaged."""


class FileFormat(Protocol):
    """One format of files."""

    @property
    def name(self) -> str:
        """What users call it."""

    def recognizes(self, path: str, head: bytes) -> bool:
        """True for a file that begins like this."""

    def scan(self, stream: HashedStream, size: int) -> list[FilePart]:
        """Find all samples of a file, from its begin to its end. Raises a BadFileError if it is damaged."""

    def open(self, file: IO[bytes], samples: int, details: Numbers) -> SampleReader:
        """Return a reader of a part of a file."""


class RandomReader:
    """Reads parts of a file in any order."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._descriptor = getattr(file, "raw", file), -1  # without a buffer, which would read more
        with suppress(OSError):  # a file that is not on this host has no descriptor
            self._descriptor = file.fileno()

    def between(self, begin: int, end: int) -> bytes:
        """Return these bytes; fewer if the file ends before."""
        if self._descriptor >= 0:
            return os.pread(self._descriptor, end - begin, begin)
        self._file.seek(begin)
        return self._file.read(end - begin)


def check_offsets(details: Numbers, samples: int, size: int) -> Numbers:
    """Return where samples begin, and where the last one ends; refuse numbers that are not in order, or too large."""
    if len(details) != samples + 1 or int(details[-1]) > size or bool((details[1:] < details[:-1]).any()):
        raise BadFileError("its index does not fit the file")
    return details


def offsets(begins: Sequence[int] | np.ndarray[Any, Any], end: int) -> Numbers:
    """Begins of samples, and the end of the last one, as details."""
    return np.append(np.asarray(begins, np.uint64), np.uint64(end))
