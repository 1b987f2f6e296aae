"""The index of data in files, as it is stored: how many samples each piece has, and where they are in it.

A piece is what is shuffled together: a file, or a part of one. An index has the details of all pieces, which may be
large, then arrays with one 64-bit number per piece, the paths, and at its end a summary in JSON that says where each
section is: so it is written from begin to end, and nobody needs memory for all details. Only the details of pieces that
are read are looked at, so memory does not grow with the samples.

Nothing in an index is believed: sections are hashed, numbers are compared with each other, and a path that leaves its
folder is refused.
"""

import mmap
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from onecurve.describe.errors import OnecurveError
from onecurve.device.files import replace_file

Numbers = NDArray[np.uint64]

_MAGIC = b"onecurve index\n\x01"
_TRAILER = struct.Struct(f"<QQ{len(_MAGIC)}s")
"""At the end: the length and the hash of the summary before it."""
_MAX_SUMMARY_BYTES = 1 << 16
_MAX_SAMPLES = 1 << 60
_WORD = 8
_PER_PIECE = ("sizes", "stamps", "hashes", "samples", "parts", "detail_ends", "detail_hashes", "path_ends")


class DamagedIndexError(OnecurveError):
    """An index that cannot be used."""


@dataclass(frozen=True)
class DataPiece:
    """What is shuffled together: a file, or a part of one."""

    path: str
    """Of its file, relative to the folder of the data."""
    size: int
    """Bytes of its file."""
    stamp: int
    hash: int
    """XXH3 of its file."""
    samples: int
    part: int = 0
    """Which part of the file, if it has several."""
    details: Sequence[int] | Numbers = ()
    """Where the samples are; what the numbers mean depends on the format."""


class _Section(msgspec.Struct, frozen=True):
    begin: int
    bytes: int
    hash: int
    """0 for the details, which are hashed piece by piece."""


class _Summary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    settings: Mapping[str, str]
    pieces: int
    sections: Mapping[str, _Section]


class IndexFile:
    """An index that is mapped into memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._map = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:
            raise DamagedIndexError(f"{path}: it cannot be read as an index ({error})") from None
        summary = self._summary()
        self.format, self.settings, self._pieces = summary.format, summary.settings, summary.pieces
        columns = {name: self._numbers(summary, name) for name in _PER_PIECE}
        self.sizes, self._stamps, self._hashes = (columns[name] for name in ("sizes", "stamps", "hashes"))
        self.samples, self.parts = columns["samples"], columns["parts"]
        self._detail_ends, self._detail_hashes = columns["detail_ends"], columns["detail_hashes"]
        self._path_ends = columns["path_ends"]
        self._details = self._section(summary, "details", is_hashed=False)
        self._paths = self._section(summary, "paths")
        self._check_ends("paths", self._path_ends, len(self._paths))
        self._check_ends("details", self._detail_ends, len(self._details) // 8)
        if self._pieces and (
            self.samples.max() > _MAX_SAMPLES or float(self.samples.sum(dtype=np.float64)) > _MAX_SAMPLES
        ):
            raise self._broken("it has more samples than can be")

    def __reduce__(self) -> tuple[type["IndexFile"], tuple[Path]]:
        return IndexFile, (self._path,)  # another process maps it again

    def __len__(self) -> int:
        return self._pieces

    @property
    def identity(self) -> str:
        """Another one if it is an index of other files, or of other content."""
        return xxhash.xxh3_64_hexdigest(self._map[-_TRAILER.size :])

    def piece(self, number: int, with_details: bool = True) -> DataPiece:
        """Return a piece, with its details or without."""
        begin = int(self._detail_ends[number - 1]) if number else 0
        end = int(self._detail_ends[number]) if with_details else begin
        details = np.frombuffer(self._details[8 * begin : 8 * end], np.uint64)
        if with_details and xxhash.xxh3_64_intdigest(details.data) != int(self._detail_hashes[number]):
            raise self._broken(f"the details of piece {number} are damaged")
        return DataPiece(
            path=self.path(number),
            size=int(self.sizes[number]),
            stamp=int(self._stamps[number]),
            hash=int(self._hashes[number]),
            samples=int(self.samples[number]),
            part=int(self.parts[number]),
            details=details,
        )

    def path(self, number: int) -> str:
        """Return the path of a piece. It cannot leave the folder of the data."""
        begin = int(self._path_ends[number - 1]) if number else 0
        try:
            path = bytes(self._paths[begin : int(self._path_ends[number])]).decode()
        except UnicodeDecodeError:
            raise self._broken(f"the path of piece {number} is no text") from None
        refuse_escaping(path, str(self._path))
        return path

    def _summary(self) -> _Summary:
        if len(self._map) < len(_MAGIC) + _TRAILER.size or self._map[: len(_MAGIC)] != _MAGIC:
            raise self._broken("it is not an index of onecurve, or one of another version")
        end = len(self._map) - _TRAILER.size
        length, expected, magic = _TRAILER.unpack_from(self._map, end)
        if magic != _MAGIC or length > min(_MAX_SUMMARY_BYTES, end):
            raise self._broken("its end is missing")
        text = self._map[end - length : end]
        if xxhash.xxh3_64_intdigest(text) != expected:
            raise self._broken("its summary is damaged")
        try:
            return msgspec.json.decode(text, type=_Summary)
        except msgspec.DecodeError as error:
            raise self._broken(f"its summary cannot be read: {error}") from None

    def _section(self, summary: _Summary, name: str, is_hashed: bool = True) -> memoryview:
        section = summary.sections.get(name)
        if section is None or section.begin < 0 or section.bytes < 0 or section.begin + section.bytes > len(self._map):
            raise self._broken(f"its section {name!r} is not there")
        found = self._map[section.begin : section.begin + section.bytes]
        if is_hashed and xxhash.xxh3_64_intdigest(found) != section.hash:
            raise self._broken(f"its section {name!r} is damaged")
        return found

    def _numbers(self, summary: _Summary, name: str) -> Numbers:
        found = self._section(summary, name)
        if len(found) != 8 * summary.pieces:
            raise self._broken(f"its section {name!r} has not one number per piece")
        return np.frombuffer(found, np.uint64)

    def _check_ends(self, name: str, ends: Numbers, length: int) -> None:
        if len(ends) and (int(ends[-1]) > length or bool((ends[1:] < ends[:-1]).any())):
            raise self._broken(f"its {name} are not in order")

    def _broken(self, why: str) -> DamagedIndexError:
        return DamagedIndexError(f"{self._path}: {why}; make the index again with `onecurve index`")


def write_index(path: Path, format: str, settings: Mapping[str, str], pieces: Iterable[DataPiece]) -> None:
    """Write an index, completely or not at all. Pieces are written one after the other."""
    replace_file(path, _file_parts(format, settings, pieces))


def _file_parts(format: str, settings: Mapping[str, str], pieces: Iterable[DataPiece]) -> Iterator[bytes]:
    columns = {name: array("Q") for name in _PER_PIECE}
    paths = bytearray()
    yield _MAGIC
    numbers = 0
    for piece in pieces:
        paths += piece.path.encode()
        detail = np.asarray(piece.details, np.uint64).tobytes()
        yield detail
        numbers += len(detail) // _WORD
        row = (
            piece.size,
            piece.stamp,
            piece.hash,
            piece.samples,
            piece.part,
            numbers,
            xxhash.xxh3_64_intdigest(detail),
            len(paths),
        )
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    sections = {"details": _Section(len(_MAGIC), _WORD * numbers, 0)}
    at = len(_MAGIC) + _WORD * numbers
    hashed = {**{name: column.tobytes() for name, column in columns.items()}, "paths": bytes(paths)}
    for name, data in hashed.items():
        sections[name] = _Section(at, len(data), xxhash.xxh3_64_intdigest(data))
        yield data
        at += len(data)
    text = msgspec.json.encode(_Summary(format, settings, len(columns["sizes"]), sections))
    yield text
    yield _TRAILER.pack(len(text), xxhash.xxh3_64_intdigest(text), _MAGIC)


def refuse_escaping(path: str, where: str) -> None:
    """Refuse a path that is not below its folder."""
    parts = path.split("/")
    if not path or "\0" in path or "\\" in path or "://" in path or any(part in ("", ".", "..") for part in parts):
        raise DamagedIndexError(f"{where}: the path {path!r} leaves the folder of the data, and is refused")
