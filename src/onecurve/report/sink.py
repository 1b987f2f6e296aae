"""A sink takes records. Each rank writes its own file; nothing is collected at rank 0."""

from pathlib import Path
from typing import Protocol

from onecurve.describe.convert import to_json
from onecurve.describe.record import Record


class Sink(Protocol):
    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One line of JSON per record, on disk as soon as it is written; what is there stays."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, record: Record) -> None:
        self._file.write(to_json(record) + "\n")

    def close(self) -> None:
        self._file.close()
