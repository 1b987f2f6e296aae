"""Runs the commands of a page in one shell, in a folder of its own."""

import os
import queue
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_END = "--- end of command"
_END_SECONDS = 2.0


class Shell:
    """A bash in which one command runs after the other; variables, jobs in the background and the folder stay."""

    def __init__(self, folder: Path, prefix: tuple[str, ...] = ()) -> None:
        # commands find the onecurve that is tested, and caches of measurements and proofs of their own
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "COLUMNS": "120", "HOME": str(folder / ".home")}
        (folder / ".home").mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            [*prefix, "bash", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for number in ("TERM", "KILL"):
            subprocess.run(["pkill", f"-{number}", "--session", str(self._process.pid)], check=False)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)

    def begin(self, command: str) -> None:
        assert self._process.stdin is not None
        # A command such as srun would read what follows.
        self._process.stdin.write(f'{{ {command}\n}} < /dev/null\necho "{_END} $?"\n')
        self._process.stdin.flush()

    def end(self, timeout: float) -> tuple[str, int]:
        """Wait for the command; return its output and its exit status."""
        lines, deadline = [], time.monotonic() + timeout
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(
                    f"a command took longer than {timeout:.0f} s; its output:\n{''.join(lines)}"
                ) from None
            before, end, status = line.partition(_END)
            lines.append(before if end else line)
            if end:
                return "".join(lines), int(status)

    def run(self, command: str, timeout: float) -> tuple[str, int]:
        self.begin(command)
        return self.end(timeout)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(f"{_END} {self._process.wait()}")
