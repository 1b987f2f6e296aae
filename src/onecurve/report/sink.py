"""Sinks, which receive the records of a run. Each rank writes its own file; nothing is gathered on rank 0."""

from pathlib import Path
from typing import Protocol

from onecurve.describe.convert import to_json
from onecurve.describe.record import Record


class Sink(Protocol):
    """Anything that receives records."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """Appends one line of JSON per record to a file, and flushes it after every record."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, record: Record) -> None:
        self._file.write(to_json(record) + "\n")

    def close(self) -> None:
        self._file.close()
