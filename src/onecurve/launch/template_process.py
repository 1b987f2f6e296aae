"""The launcher's side of a template process."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Self

from onecurve.describe.errors import OnecurveError
from onecurve.device.environment import python_environment
from onecurve.device.scratch import new_scratch, remove_scratch
from onecurve.launch.event_loop import readable
from onecurve.launch.message_socket import Message, MessageSocket
from onecurve.launch.process import kill_process
from onecurve.launch.template import Warmth

_log = logging.getLogger(__name__)
_NEXT_TRY: dict[Warmth, Warmth] = {"script": "torch", "torch": "none"}
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Settings of torch's allocator. Segments that can grow keep the memory of an accelerator from falling to pieces."""
_THREAD_WAIT_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_SPIN_COUNT = 1000
"""How many times a waiting OpenMP thread looks for work before it gives up its core. With OpenMP's own value, 300,000,
waiting threads keep the cores that the other threads of the rank need as soon as another program runs too."""


class TemplateProcess:
    """A running template. It begins to import as soon as it is created; wait until it is `ready` before the first fork.

    It ends with the `with` block, and its ranks with it. Ranks for several purposes can live at the same time, in one
    event loop.
    """

    def __init__(self, program: str, verb: str, request: str, say: Callable[[str], None] = _log.info) -> None:
        """`program`: see `RankProgram`. `verb`, `request`: what is imported for. `say`: told why a start is slow."""
        self._scratch = new_scratch()
        self._order = {
            "program": program,
            "verb": verb,
            "request": request,
            "parent": os.getpid(),
            "scratch": str(self._scratch),
        }
        self._say = say
        self._warmth: Warmth = "script"
        self._is_ready = False
        self._numbers = count()
        self._listeners: dict[int, Callable[[Message], None]] = {}
        """Number of a rank → told what the template reports about it."""
        self._process, self._control = self._start()

    async def ready(self) -> None:
        """Wait until ranks can be forked."""
        while not self._is_ready:
            await readable(self._control)
            for answer in self._receive():
                if answer["event"] == "ready":
                    self._is_ready = True
                else:
                    self._start_colder(answer["reason"])
        asyncio.get_running_loop().add_reader(self._control, self._dispatch)

    def fork(self, verb: str, request: str, channel: int, listener: Callable[[Message], None]) -> int:
        """Start a rank, and return its number. `channel`: descriptor of the rank's end of its socket.

        `listener` is told that the rank has `started`, with its process id, and has `ended`, with its exit status, or
        that the template is `lost`, with the reason.
        """
        number = next(self._numbers)
        self._listeners[number] = listener
        self._control.send({"number": number, "verb": verb, "request": request}, channel)
        return number

    def forget(self, number: int) -> None:
        """Report no more about a rank. If its process has not been reported yet, it will be killed."""
        self._listeners.pop(number, None)

    def close(self) -> None:
        self._end_process()
        remove_scratch(self._scratch)

    def _end_process(self) -> None:
        self._control.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def _dispatch(self) -> None:
        try:
            reports = self._receive()
        except OnecurveError as error:
            asyncio.get_running_loop().remove_reader(self._control)
            for listener in [*self._listeners.values()]:
                listener({"event": "lost", "reason": str(error)})
            return
        for report in reports:
            told = self._listeners.get(report["number"])
            if told is not None:
                told(report)
            elif report["event"] == "started":
                kill_process(report["pid"])

    def _receive(self) -> list[Message]:
        """What the template has reported since the last call. Raises an OnecurveError if the template has ended."""
        reports = self._control.receive_waiting()
        if self._control.is_closed and not reports:
            raise OnecurveError(f"the process that starts the ranks {_ending(self._process.wait())}")
        return reports

    def _start(self) -> tuple[subprocess.Popen[bytes], MessageSocket]:
        control, other = MessageSocket.pair()
        command = [sys.executable, "-u", "-m", "onecurve.launch.template", str(other.fileno())]
        with other:
            process = subprocess.Popen(command, pass_fds=[other.fileno()], env=self._environment())
        control.send({**self._order, "warmth": self._warmth})
        return process, control

    def _environment(self) -> dict[str, str]:
        environment = python_environment()
        if self._warmth != "none":  # OpenBLAS, which NumPy loads, starts its threads when it is imported
            environment["OPENBLAS_NUM_THREADS"] = "1"
        if not any(name in environment for name in _ALLOCATOR_VARIABLES):
            environment[_ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"
        if not any(name in environment for name in _THREAD_WAIT_VARIABLES):
            environment[_THREAD_WAIT_VARIABLES[0]] = str(_SPIN_COUNT)
        return environment

    def _start_colder(self, reason: str) -> None:
        """Start again with fewer imports, because the process cannot be forked."""
        self._end_process()
        self._warmth = _NEXT_TRY[self._warmth]
        self._say(f"ranks start more slowly: {reason}, so a process that has done it cannot be forked")
        self._process, self._control = self._start()


def _ending(status: int) -> str:
    return f"ended with exit status {status}" if status >= 0 else f"was killed by signal {-status}"
