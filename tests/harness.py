"""Helpers that start onecurve as a user would, in separate processes, and read its records."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onecurve.describe.record import EventRecord, IntervalRecord, Record, StepRecord
from onecurve.runs.folder import records_file
from onecurve.runs.records import read_records

TESTS = Path(__file__).parent
JOBS = TESTS / "jobs"
ZOO = TESTS / "zoo"
EXAMPLES = TESTS.parent / "examples"
BENCHMARKS = TESTS.parent / "benchmarks"
SMALL = str(JOBS / "small.py")

_TIMEOUT = 240
"""Seconds that a process may take."""
_START_TIMEOUT = 90
"""Seconds until a run must have written the expected steps."""


def python(*arguments: str, cwd: Path | None = None, timeout: float = _TIMEOUT, **environment: str):
    """Run Python until it exits; return the finished process and its output."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        text=True,
        capture_output=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **environment},
    )


def onecurve(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "onecurve", *arguments, cwd=cwd, **environment)


def torchrun(
    ranks: int, *arguments: str, cwd: Path | None = None, timeout: float = _TIMEOUT
) -> subprocess.CompletedProcess[str]:
    start = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    return python(*start, *arguments, cwd=cwd, timeout=timeout, GLOO_SOCKET_IFNAME="lo")


@contextmanager
def started(*arguments: str, cwd: Path, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """Start `onecurve …` in the background; kill it and its descendants at the end of the block."""
    command = [sys.executable, "-m", "onecurve", *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=cwd, text=True, env={**os.environ, **environment}, **pipes) as process:
        try:
            yield process
        finally:
            kill_all(process.pid)


def descendants(pid: int) -> list[int]:
    """Return the process ids of all descendants of a process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended since the listing
    known = {pid}
    for child in sorted(parents):
        if parents[child] in known:
            known.add(child)
    return sorted(known - {pid})


def kill_all(pid: int) -> None:
    """Kill a process and all its descendants at once."""
    for process_id in [*descendants(pid), pid]:
        try:
            os.kill(process_id, signal.SIGKILL)
        except ProcessLookupError:
            continue


def processes_with(word: str) -> list[str]:
    """Return the command lines of running processes that contain a word."""
    lines = subprocess.run(["ps", "-ewwo", "args"], text=True, capture_output=True, check=True).stdout.splitlines()
    return [line for line in lines if word in line and "ps -ewwo" not in line]


def records(folder: Path, rank: int = 0) -> list[Record]:
    return list(read_records(folder, rank))


def warnings(folder: Path) -> list[str]:
    return [record.text for record in records(folder) if isinstance(record, EventRecord) and record.event == "warning"]


def steps(folder: Path, rank: int = 0) -> list[StepRecord | IntervalRecord]:
    """The records of a rank's steps; of the first 64 steps, the intervals of ranks other than 0 have one each."""
    return [record for record in read_records(folder, rank) if isinstance(record, StepRecord | IntervalRecord)]


def wait_for_steps(folder: Path, count: int, rank: int = 0) -> None:
    """Wait until the records of a rank have at least `count` steps."""
    path = records_file(folder, rank)
    deadline = time.monotonic() + _START_TIMEOUT
    kind = "step" if rank == 0 else "interval"
    while not path.exists() or path.read_text().count(f'"kind":"{kind}"') < count:
        assert time.monotonic() < deadline, f"{path}: fewer than {count} steps after {_START_TIMEOUT} s"
        time.sleep(0.02)
