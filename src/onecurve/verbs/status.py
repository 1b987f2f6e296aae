"""onecurve status: how is a run doing now? It reads the records in the run's folder, and asks no rank."""

import socket
from dataclasses import replace
from pathlib import Path

from onecurve.describe.errors import OnecurveError
from onecurve.describe.run_status import RunStatus
from onecurve.diagnose.history import RunHistory
from onecurve.diagnose.history_reader import read_history
from onecurve.diagnose.run_status import status_of
from onecurve.runs.folder import SCRATCH, records_file
from onecurve.runs.lock import is_locked
from onecurve.verbs.run_copy import readable_folder

_MAX_DEPTH = 4
"""Folders below the current one in which runs are looked for."""


def status(run: str | Path) -> RunStatus:
    """Return how a run is doing, as `onecurve status` shows it. The run may be in progress.

    Args:
        run: The run's folder, or the URL of one.

    Returns:
        Its progress, loss, speed, memory, newest checkpoint, evaluation and events, and how each rank is doing.

    Example::

        now = oc.status("runs/first")
        print(now.state, now.step, "of", now.steps, "steps, loss", now.loss)
    """
    with readable_folder(run) as folder:
        history = read_history(folder)
        return replace(status_of(history, locked=is_alive(folder, history)), folder=str(run))


def is_alive(folder: Path, history: RunHistory) -> bool | None:
    """Whether the first rank of a run exists; None if that cannot be known, as on another host."""
    return is_locked(folder) if history.ranks[0].host == socket.gethostname() else None


def runs_below(folder: str | Path = ".") -> list[RunStatus]:
    """Return the runs in a folder and those below it, the newest first. Runs that cannot be read are left out."""
    found = []
    pattern = records_file(Path(), 0).as_posix()
    for depth in range(_MAX_DEPTH + 1):
        for file in Path(folder).glob("/".join([*["*"] * depth, pattern])):
            if file.parent.parent.name.startswith(SCRATCH):
                continue
            try:
                found.append(status(file.parent.parent))
            except (OnecurveError, OSError):
                continue
    return sorted(found, key=lambda each: each.age)
