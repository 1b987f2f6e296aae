"""The workers of a run on this host."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from onecurve.describe.errors import OnecurveError
from onecurve.device.environment import python_environment
from onecurve.launch.process import status_text

LOST_RUN_STATUS = 75
"""Exit status of a worker that has lost the run."""
_SHORT_SECONDS = 5.0
"""One that ends sooner than this is replaced only then."""


@dataclass
class _LocalWorker:
    process: subprocess.Popen[bytes]
    time: float = field(default_factory=time.monotonic)


class LocalWorkers:
    """Workers that live as long as this object. One that is lost is replaced."""

    def __init__(self, module: str, count: int, order: Callable[[int], str]) -> None:
        """`module`: what Python runs as a worker. `order`: number of a worker → what it reads from its input."""
        self._module, self._order = module, order
        self._workers = [self._start(number) for number in range(count)]

    def replace_lost(self) -> list[str]:
        """Start workers again that are lost; return how each of them ended. Raises an error if one cannot run."""
        texts = []
        for number, worker in enumerate(self._workers):
            status = worker.process.poll()
            if status is None or time.monotonic() - worker.time < _SHORT_SECONDS:
                continue
            if status > 0 and status != LOST_RUN_STATUS:
                raise OnecurveError(f"worker {number} has ended ({status_text(status)}); its own output says why")
            texts.append(f"worker {number} was lost ({status_text(status)}); it is started again")
            self._workers[number] = self._start(number)
        return texts

    def close(self) -> None:
        """End all workers, if they do not end by themselves."""
        end = time.monotonic() + 2.0
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def _start(self, number: int) -> _LocalWorker:
        command = [sys.executable, "-m", self._module]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=python_environment())
        assert process.stdin is not None
        process.stdin.write(self._order(number).encode() + b"\n")
        process.stdin.close()
        return _LocalWorker(process)
