"""Sinks, which receive the records of a run. Each rank writes its own file; nothing is gathered on rank 0."""

import os
from pathlib import Path
from typing import Protocol

from onecurve.describe.convert import json_line
from onecurve.describe.record import Record, TraceRecord


class Sink(Protocol):
    """Anything that receives records."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """Appends lines of JSON to a file, each at once: a step is recorded in every run, so it must cost little."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_cut_off = path.exists() and _last_byte(path) not in (b"", b"\n")
        self._file = path.open("ab", buffering=0)
        if is_cut_off:  # a host or disk failed in the middle of a line
            self._file.write(b"\n")

    def _write(self, noun: object) -> None:
        self._file.write(json_line(noun))

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


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read(1)
