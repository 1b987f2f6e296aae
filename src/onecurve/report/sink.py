"""Sinks, which receive the records of a run. Each rank writes its own file; nothing is gathered on rank 0."""

from pathlib import Path
from typing import Protocol

from onecurve.describe.convert import to_json
from onecurve.describe.record import Record, TraceRecord


class Sink(Protocol):
    """Anything that receives records."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """Appends lines of JSON to a file, and flushes it after every line."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_cut_off = path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")
        self._file = path.open("a", encoding="utf-8", buffering=1)
        if is_cut_off:  # a host or disk failed in the middle of a line
            self._file.write("\n")

    def _write(self, noun: object) -> None:
        self._file.write(to_json(noun) + "\n")

    def close(self) -> None:
        self._file.close()


class JsonLines(_Lines):
    """A file of records."""

    def write(self, record: Record) -> None:
        self._write(record)


class TraceFile(_Lines):
    """A file of traces."""

    def write(self, record: TraceRecord) -> None:
        self._write(record)
