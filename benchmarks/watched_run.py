"""A run as chaos.py watches it: its processes, and what its records say so far."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_POLL_SECONDS = 0.005
_TIMEOUT = 300.0

Record = dict[str, Any]


class WatchedRun:
    """`onecurve run` in a process group of its own."""

    def __init__(self, script: Path, folder: Path, *options: str) -> None:
        self.folder = folder
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  it is read when the run has ended
        start = [sys.executable, "-m", "onecurve", "run", str(script), "--out", str(folder), *options]
        self.started = time.time()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            start, env=environment, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self._read = 0
        self._records: list[Record] = []

    def ranks(self) -> list[int]:
        """Process ids of the ranks: the children of the template, which the keeper has started."""
        templates = [pid for pid in children(self.process.pid) if "onecurve.launch.template" in command_of(pid)]
        return [pid for template in templates for pid in children(template)]

    def records(self) -> list[Record]:
        """The records of rank 0 so far."""
        path = self.folder / "records" / "rank-0.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._read)
                lines = file.read().split(b"\n")
                self._read += sum(len(line) + 1 for line in lines[:-1])
                self._records += [json.loads(line) for line in lines[:-1]]
        return self._records

    def steps(self, generation: int) -> list[int]:
        """Steps that a generation has done."""
        return [
            record["step"]
            for record in self.records()
            if record["kind"] == "step" and record["generation"] == generation
        ]

    def wait_for_step(self, generation: int, step: int) -> float | None:
        """Wait until a generation has done a step; return the time, or None if the run has ended before."""
        deadline = time.time() + _TIMEOUT
        while time.time() < deadline:
            if any(done >= step for done in self.steps(generation)):
                return time.time()
            if self.process.poll() is not None:
                return time.time() if any(done >= step for done in self.steps(generation)) else None
            time.sleep(_POLL_SECONDS)
        return None

    def end(self) -> int | None:
        """Wait until the run has ended; return its exit status, or None if it hangs."""
        try:
            return self.process.wait(_TIMEOUT)
        except subprocess.TimeoutExpired:
            return None

    def output(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._log.close()

    def __enter__(self) -> "WatchedRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
