"""The launcher's side of a template process."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from onecurve.describe.errors import OnecurveError
from onecurve.launch.event_loop import readable
from onecurve.launch.message_socket import Message, MessageSocket
from onecurve.launch.template import Warmth

_log = logging.getLogger(__name__)
_NEXT_TRY: dict[Warmth, Warmth] = {"script": "torch", "torch": "none"}


class TemplateProcess:
    """A running template. It begins to import as soon as it is created; wait until it is `ready` before the first fork.

    It ends with the `with` block, and its ranks with it.
    """

    def __init__(self, program: str, verb: str, request: str, say: Callable[[str], None] = _log.info) -> None:
        """`program`: see `RankProgram`. `verb`, `request`: what is imported for. `say`: told why a start is slow."""
        self._order = {"program": program, "verb": verb, "request": request, "parent": os.getpid()}
        self._say = say
        self._warmth: Warmth = "script"
        self._is_ready = False
        self._process, self.control = self._start()

    async def ready(self) -> None:
        """Wait until ranks can be forked."""
        while not self._is_ready:
            await readable(self.control)
            for answer in self.events():
                if answer["event"] == "ready":
                    self._is_ready = True
                else:
                    self._start_colder(answer["reason"])

    def fork(self, local_rank: int, verb: str, request: str, channel: int, environment: Mapping[str, str]) -> None:
        """Start a rank; the template reports `started`. `channel`: descriptor of the rank's end of its socket."""
        order = {"local_rank": local_rank, "verb": verb, "request": request, "environment": dict(environment)}
        self.control.send(order, channel)

    def events(self) -> list[Message]:
        """What the template has reported since the last call. Raises an OnecurveError if the template has ended."""
        events = self.control.receive_waiting()
        if self.control.is_closed and not events:
            raise OnecurveError(f"the process that starts the ranks {_ending(self._process.wait())}")
        return events

    def close(self) -> None:
        self.control.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def _start(self) -> tuple[subprocess.Popen[bytes], MessageSocket]:
        control, other = MessageSocket.pair()
        command = [sys.executable, "-u", "-m", "onecurve.launch.template", str(other.fileno())]
        # OpenBLAS, which NumPy loads, starts its threads when it is imported.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"} if self._warmth != "none" else None
        with other:
            process = subprocess.Popen(command, pass_fds=[other.fileno()], env=environment)
        control.send({**self._order, "warmth": self._warmth})
        return process, control

    def _start_colder(self, reason: str) -> None:
        """Start again with fewer imports, because the process cannot be forked."""
        self.close()
        self._warmth = _NEXT_TRY[self._warmth]
        self._say(f"ranks start more slowly: {reason}, so a process that has done it cannot be forked")
        self._process, self.control = self._start()


def _ending(status: int) -> str:
    return f"ended with exit status {status}" if status >= 0 else f"was killed by signal {-status}"
