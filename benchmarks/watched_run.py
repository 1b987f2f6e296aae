"""A run as chaos.py watches it: its processes, and what its records say so far."""

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from logged_process import LoggedProcess

_POLL_SECONDS = 0.005
PATIENCE = 100.0
"""Seconds after which a run hangs."""

Record = dict[str, Any]


class Records:
    """What rank 0 of a run has recorded so far."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "records" / "rank-0.jsonl"
        self._read = 0
        self._last_line = b""
        self._records: list[Record] = []

    def all(self) -> list[Record]:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read - len(self._last_line))
                if file.read(len(self._last_line)) != self._last_line:  # a run that was started again has cut the file
                    self._read, self._last_line, self._records = 0, b"", []
                    file.seek(0)
                lines = file.read().splitlines(keepends=True)
                complete = [line for line in lines if line.endswith(b"\n")]
                self._read += sum(map(len, complete))
                self._last_line = complete[-1] if complete else self._last_line
                self._records += map(json.loads, complete)
        return self._records

    def steps(self, generation: int) -> list[int]:
        """Steps that a generation has done."""
        return [
            record["step"] for record in self.all() if record["kind"] == "step" and record["generation"] == generation
        ]

    def intervals(self) -> list[int]:
        """Steps between two snapshots, each time that it was told."""
        return [int(record["text"].split()[1]) for record in self.all() if record.get("event") == "snapshots"]


class WatchedRun(LoggedProcess):
    """`onecurve run` in a session of its own."""

    def __init__(
        self, script: Path, folder: Path, *options: str, launcher: Sequence[str] = (), group: Path | None = None
    ) -> None:
        """`launcher`: what starts it instead of this Python, for example torchrun. `group`: its control group."""
        self.folder, self.records = folder, Records(folder)
        words = [*(launcher or [sys.executable]), "-m", "onecurve", "run", str(script), "--out", str(folder), *options]
        if group is not None:
            words = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh", *words]
        self.started = time.time()
        super().__init__(words, CHAOS_FOLDER=str(folder))

    def ranks(self) -> list[int]:
        """Process ids of the ranks: the children of the template, which the keeper has started. In the first generation
        they are in the order of the ranks."""
        templates = [pid for pid in children(self.process.pid) if "onecurve.launch.template" in command_of(pid)]
        return [pid for template in templates for pid in children(template)]

    def ask(self, rank: int, command: str) -> None:
        """Have a rank do something, see chaos_job.py."""
        part = self.folder / f"rank-{rank}.part"
        part.write_text(command)
        part.rename(self.folder / f"rank-{rank}")

    def wait_for_step(self, generation: int, step: int) -> float | None:
        """Wait until a generation has done a step; return the time, or None if the run has ended before."""
        deadline = time.time() + PATIENCE
        while time.time() < deadline:
            if any(done >= step for done in self.records.steps(generation)):
                return time.time()
            if self.process.poll() is not None:
                return time.time() if any(done >= step for done in self.records.steps(generation)) else None
            time.sleep(_POLL_SECONDS)
        return None

    def wait_for_output(self, pattern: str) -> None:
        """Wait until something is printed; end this program if it is not."""
        deadline = time.time() + PATIENCE
        while not re.search(pattern, self.output()):
            if time.time() > deadline or self.process.poll() is not None:
                raise SystemExit(f"no {pattern!r} was printed\n{self.output()}")
            time.sleep(_POLL_SECONDS)

    def record(self) -> Record:
        """The record of the newest generation."""
        return next(record for record in reversed(self.records.all()) if record["kind"] == "generation")

    def end(self, seconds: float = PATIENCE) -> int | None:
        """Wait until the run has ended; return its exit status, or None if it hangs."""
        return super().end(seconds)


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
