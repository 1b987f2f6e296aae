"""What an indexing has found so far, in a file: if it is broken off, the next one continues. Memory has one entry per
file, whatever the number of samples."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import xxhash

from onecurve.formats.storage import DataFile

_LENGTHS = struct.Struct("<QQ")
"""Before each record: its length and its hash."""


class ScannedFile(msgspec.Struct, frozen=True):
    """What was found in one file."""

    path: str
    size: int
    stamp: int
    hash: int
    parts: Sequence[tuple[int, bytes]]
    """Samples of each part, and its details."""


@dataclass(frozen=True)
class _Entry:
    size: int
    stamp: int
    begin: int
    length: int


class IndexJournal:
    """Records of files, one after the other. The first record is the name of their format."""

    def __init__(self, path: Path, format: str) -> None:
        self._path = path
        self._file = path.open("a+b")
        self._entries: dict[str, _Entry] = {}
        if self._next_record(0) != msgspec.msgpack.encode(format):
            self._file.truncate(0)
            self._write(msgspec.msgpack.encode(format))
        else:
            self._read_entries()

    def has(self, path: str) -> bool:
        """True if a file was scanned, whether it has changed since or not."""
        return path in self._entries

    def knows(self, file: DataFile) -> bool:
        """True if a file was scanned, and has not changed since."""
        entry = self._entries.get(file.path)
        return entry is not None and (entry.size, entry.stamp) == (file.size, file.stamp)

    def add(self, scanned: ScannedFile) -> None:
        record = msgspec.msgpack.encode(scanned)
        begin = self._write(record)
        self._entries[scanned.path] = _Entry(scanned.size, scanned.stamp, begin, len(record))

    def scanned(self, path: str) -> ScannedFile:
        """Return what was found in a file."""
        entry = self._entries[path]
        self._file.seek(entry.begin)
        return msgspec.msgpack.decode(self._file.read(entry.length), type=ScannedFile)

    def close(self) -> None:
        self._file.close()

    def remove(self) -> None:
        """The index is written."""
        self._file.close()
        self._path.unlink()

    def _read_entries(self) -> None:
        """Look at all records; one that is not complete is cut off, with all after it."""
        at = self._end_of_record(0)
        while (record := self._next_record(at)) is not None:
            scanned = msgspec.msgpack.decode(record, type=ScannedFile)
            begin = at + _LENGTHS.size
            self._entries[scanned.path] = _Entry(scanned.size, scanned.stamp, begin, len(record))
            at = begin + len(record)
        self._file.truncate(at)

    def _end_of_record(self, at: int) -> int:
        self._file.seek(at)
        length, _ = _LENGTHS.unpack(self._file.read(_LENGTHS.size))
        return at + _LENGTHS.size + int(length)

    def _next_record(self, at: int) -> bytes | None:
        self._file.seek(at)
        lengths = self._file.read(_LENGTHS.size)
        if len(lengths) < _LENGTHS.size:
            return None
        length, expected = _LENGTHS.unpack(lengths)
        record = self._file.read(length) if length < 1 << 40 else b""
        is_whole = len(record) == length and xxhash.xxh3_64_intdigest(record) == expected
        return record if is_whole else None

    def _write(self, record: bytes) -> int:
        """Write a record; return where its content begins."""
        self._file.seek(0, 2)
        begin = self._file.tell() + _LENGTHS.size
        self._file.write(_LENGTHS.pack(len(record), xxhash.xxh3_64_intdigest(record)) + record)
        self._file.flush()
        return begin
