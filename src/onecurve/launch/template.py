"""The template: a process that has imported everything, and is forked to become a rank.

    python -m onecurve.launch.template DESCRIPTOR

Importing torch takes seconds; a fork takes a few hundredths of one. A process may be forked if it has one thread, has
run no parallel loop and has not used an accelerator: otherwise the child waits for threads that it does not have. The
template tests this. If the user's script does not allow it, the launcher starts a template without the script, and if
that fails too, one that imports nothing and starts every rank as a new interpreter.

Signals are the launcher's business: a signal of a terminal or of Slurm reaches every process, and all but the launcher
ignore it.
"""

import gc
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Literal

from onecurve.device.file_limit import raise_file_limit
from onecurve.device.kernel_kills import prefer_as_victim
from onecurve.device.parent_process import die_with_parent
from onecurve.device.scratch import Scratch, use_scratch
from onecurve.launch.entry import program_named
from onecurve.launch.message_socket import Message, MessageSocket
from onecurve.launch.process import kill_process

Warmth = Literal["script", "torch", "none"]
"""What a template has imported: everything, everything but the user's script, or nothing."""

_IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(descriptor: int) -> None:
    """Prepare as the first message says, then serve forks until the launcher closes the socket."""
    control = MessageSocket(socket.socket(fileno=descriptor))
    order = control.receive()
    if order is None:
        return
    die_with_parent(order["parent"])
    raise_file_limit()
    for number in _IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    warmth: Warmth = order["warmth"]
    if warmth != "none":
        gc.disable()  # what is imported stays: looking for garbage among it would take an eighth of the time
        if reason := _preload(order, warmth) or _reason_not_to_fork():
            control.send({"event": "unfit", "reason": reason})
            return
        gc.collect()
        gc.freeze()  # collections in the ranks need not look at, and so copy, what was imported here
        gc.enable()
    forks = _Forks(control, order, warmth)
    # From now on there are ranks and files to clean up: the end of the launcher is an ordinary signal.
    forks.notice_end_of_launcher()
    scratch = Scratch(Path(order["scratch"]))
    control.send({"event": "ready"})
    forks.serve()
    forks.kill()
    scratch.remove()


def _preload(order: Message, warmth: Warmth) -> str:
    """Import everything; return why that failed, or "". A rank in a new interpreter will then report it in full."""
    try:
        program_named(order["program"]).preload(order["verb"], order["request"], warmth == "script")
    except Exception as error:  # a library or the user's script may raise anything
        return f"importing raised {type(error).__name__}"
    return ""


class _Forks:
    """Starts ranks on request, and reports when they end."""

    def __init__(self, control: MessageSocket, order: Message, warmth: Warmth) -> None:
        self._control, self._order, self._warmth = control, order, warmth
        self._has_launcher = True
        self._numbers: dict[int, int] = {}
        """Process id of a rank → the number that the launcher gave it."""
        self._wakeup, writer = socket.socketpair()
        for end in (self._wakeup, writer):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self._writer = writer

    def notice_end_of_launcher(self) -> None:
        """Stop serving when the launcher ends. The user's script may have a handler of its own, which ranks get back.

        The socket tells it too, unless another process that the launcher has forked still holds the other end.
        """
        self._script_handler = signal.signal(signal.SIGUSR1, self._launcher_ended)
        die_with_parent(self._order["parent"], signal.SIGUSR1)

    def _launcher_ended(self, _: int, __: FrameType | None) -> None:
        self._has_launcher = False

    def kill(self) -> None:
        """End all ranks."""
        for pid in self._numbers:
            kill_process(pid)
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)

    def serve(self) -> None:
        while self._has_launcher and not self._control.is_closed:
            readable, _, _ = select.select([self._control.fileno(), self._wakeup.fileno()], [], [])
            if self._wakeup.fileno() in readable:
                self._wakeup.recv(4096)
                self._report_ended()
            if self._control.fileno() in readable:
                for message in self._control.receive_waiting():
                    self._start(message)

    def _start(self, message: Message) -> None:
        launcher = self._control.take_descriptor()
        parent = os.getpid()
        pid = self._spawn(message, launcher) if self._warmth == "none" else os.fork()
        if pid == 0:
            self._become_rank(message, launcher, parent)
        os.close(launcher)
        self._numbers[pid] = message["number"]
        self._control.send({"event": "started", "number": message["number"], "pid": pid})

    def _become_rank(self, message: Message, launcher: int, parent: int) -> None:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGUSR1, self._script_handler or signal.SIG_DFL)
            for opened in (self._control, self._wakeup, self._writer):
                opened.close()
            use_scratch(Path(self._order["scratch"]))
            status = be_rank(self._order["program"], message["verb"], message["request"], launcher, parent)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)  # never back into the template's loop

    def _spawn(self, message: Message, launcher: int) -> int:
        command = [sys.executable, "-u", "-m", "onecurve.launch.new_rank", str(launcher), str(os.getpid())]
        words = [self._order["scratch"], self._order["program"], message["verb"], message["request"]]
        os.set_inheritable(launcher, True)
        return os.posix_spawn(sys.executable, [*command, *words], os.environ)

    def _report_ended(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._numbers.pop(pid, None)
            if number is not None:  # not a process that an import has left behind
                status = os.waitstatus_to_exitcode(status)
                self._control.send({"event": "ended", "number": number, "status": status})


def be_rank(program: str, verb: str, request: str, launcher: int, parent: int) -> int:
    """Run the program as a rank, in a process of its own; return its exit status."""
    die_with_parent(parent)
    prefer_as_victim()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = program_named(program).main(verb, request, MessageSocket(socket.socket(fileno=launcher)))
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _reason_not_to_fork() -> str:
    """Why this process must not be forked, or ""."""
    from onecurve.device.device import accelerator_in_use

    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"importing started {threads - 1} more thread{'s' if threads > 2 else ''}"
    return "importing used the accelerator" if accelerator_in_use() else ""


if __name__ == "__main__":
    main(int(sys.argv[1]))
