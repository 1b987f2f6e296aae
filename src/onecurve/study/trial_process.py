"""The run of one trial, in a process of its own on a part of this host."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MAX_MESSAGE = 300
_MAX_LOG = 20_000


@dataclass(frozen=True)
class Slot:
    """A part of this host that one trial uses."""

    cores: tuple[int, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Lets a process see its accelerators only; empty without accelerators."""


class TrialProcess:
    """A run that was started, and can be stopped."""

    def __init__(self, program: str, slot: Slot, words: Sequence[str], log: Path) -> None:
        """`program`: the module that runs a trial; `words`: its arguments. `log`: what it prints."""
        self._log = log
        self._begin = time.monotonic()
        cores = ",".join(map(str, slot.cores))
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", program, str(os.getpid()), cores, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **slot.environment},
                start_new_session=True,  # Ctrl-C is for the study, which stops its trials
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Ask the run to end after its step."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        return self._process.wait()

    @property
    def message(self) -> str:
        """The error that it has printed last."""
        text = self._log.read_bytes()[-_MAX_LOG:].decode(errors="replace").strip()
        return text.splitlines()[-1][-_MAX_MESSAGE:] if text else "it printed nothing"
