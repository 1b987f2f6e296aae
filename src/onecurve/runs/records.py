"""Reads the records of a run back, one rank at a time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onecurve.describe.convert import from_json, from_plain
from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import (
    RECORD_VERSION,
    EvaluationRecord,
    EventRecord,
    Record,
    StartRecord,
    StepRecord,
)
from onecurve.runs.folder import records_file

_KINDS: dict[str, type[Record]] = {
    "start": StartRecord,
    "step": StepRecord,
    "evaluation": EvaluationRecord,
    "event": EventRecord,
}


def read_records(folder: Path, rank: int = 0) -> Iterator[Record]:
    """Yield the records of one rank in the order in which they were written.

    The last line may be incomplete while the run is in progress or after it was killed; it is then left out. Numbers
    that were not finite are read as NaN.
    """
    path = records_file(folder, rank)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            yield _record(line, f"{path}:{number}")


def _record(line: bytes, where: str) -> Record:
    plain = from_json(dict[str, Any], line, where)
    kind = plain.get("kind")
    if kind not in _KINDS:
        raise OnecurveError(f"{where}: unknown kind of record {kind!r} (known: {', '.join(_KINDS)})")
    if kind == "start" and plain.get("version", RECORD_VERSION) > RECORD_VERSION:
        raise OnecurveError(
            f"{where}: the records have version {plain['version']}, but this onecurve reads versions up to "
            f"{RECORD_VERSION}; upgrade onecurve"
        )
    for name in ("loss", "gradient_norm"):  # written as null, because JSON has no NaN
        if name in plain and plain[name] is None:
            plain[name] = float("nan")
    return from_plain(_KINDS[kind], plain, where)
