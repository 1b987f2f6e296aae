"""Reads the records of a run back, one rank at a time."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from onecurve.describe.convert import from_json, from_plain, null_to_nan
from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import (
    RECORD_VERSION,
    EndRecord,
    EvaluationRecord,
    EventRecord,
    ExitRecord,
    GenerationRecord,
    IntervalRecord,
    LinesRecord,
    MemoryRecord,
    Record,
    StartRecord,
    StepRecord,
)
from onecurve.runs.folder import records_file

_KINDS: dict[str, type[Record]] = {
    "start": StartRecord,
    "step": StepRecord,
    "interval": IntervalRecord,
    "memory": MemoryRecord,
    "evaluation": EvaluationRecord,
    "test": EvaluationRecord,
    "event": EventRecord,
    "generation": GenerationRecord,
    "lines": LinesRecord,
    "end": EndRecord,
    "exit": ExitRecord,
}


def read_records(folder: Path, rank: int = 0) -> Iterator[Record]:
    """Yield the records of one rank in the order in which they were written.

    The last line may be incomplete while the run is in progress or after it was killed; it is then left out. Numbers
    that were not finite are read as NaN. Steps are counted from 1, also those of files that counted them from 0.
    """
    path = records_file(folder, rank)
    version = RECORD_VERSION
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            record = record_of(line, f"{path}:{number}")
            if isinstance(record, StartRecord):  # a run that was resumed by a newer onecurve has two versions
                version = record.version
            elif version == 1 and isinstance(record, StepRecord | EvaluationRecord):
                record = replace(record, step=record.step + 1)
            yield record


def record_of(line: bytes, where: str) -> Record:
    """Read one line of a file of records."""
    plain = from_json(dict[str, Any], line, where)
    kind = _KINDS.get(str(plain.get("kind")))
    if kind is None:
        raise OnecurveError(f"{where}: unknown kind of record {plain.get('kind')!r} (known: {', '.join(_KINDS)})")
    version = plain.get("version")
    if kind is StartRecord and isinstance(version, int) and version > RECORD_VERSION:
        raise OnecurveError(
            f"{where}: the records have version {version}, but this onecurve reads versions up to {RECORD_VERSION}; "
            "upgrade onecurve"
        )
    return from_plain(kind, null_to_nan(kind, plain), where)
