"""Runs in an object store: their records are copied to this host to be read."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onecurve.describe.errors import OnecurveError
from onecurve.formats.storage import Storage
from onecurve.runs.folder import ORIGIN, PLAN, RECORDS, TRACES, TRIALS

_FILE_SCHEME = "file://"


def is_remote(run: str | Path) -> bool:
    return "://" in str(run).removeprefix(_FILE_SCHEME)


@contextmanager
def readable_folder(run: str | Path, traces: bool = False) -> Iterator[Path]:
    """The folder of a run. Of a run at a URL, it is a copy of the records, and of the traces if they are asked for,
    which is removed afterwards."""
    if not is_remote(run):
        yield Path(str(run).removeprefix(_FILE_SCHEME))
        return
    url = str(run).rstrip("/")
    with tempfile.TemporaryDirectory() as name:
        folder, storage = Path(name), Storage(url)
        for part in (RECORDS, *([TRACES] if traces else [])):
            inside = Storage(f"{url}/{part}")
            for file in inside.files():
                inside.download(file, folder / part / file.path)
        if not (folder / RECORDS).is_dir():
            raise OnecurveError(f"{url}: no run's folder (it has no {RECORDS})")
        for part in (PLAN, ORIGIN, TRIALS):
            if (about := storage.stored(part)) is not None:
                storage.download(about, folder / part)
        yield folder
