"""The launcher's side of a rank process."""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from onecurve.describe.assignment import Assignment, RankFailure
from onecurve.describe.convert import to_plain
from onecurve.describe.errors import SignalName
from onecurve.describe.host import Straggler
from onecurve.describe.row_servers import RowServerAddress
from onecurve.device.snapshot_memory import SnapshotMemory
from onecurve.launch.message_socket import Message, MessageSocket
from onecurve.launch.process import kill_process
from onecurve.launch.rank_page import RankPage
from onecurve.launch.stack_dump import StackDump

_KILLED_WORKER = "is killed by signal: Killed"
"""What torch's DataLoader says about a worker process."""


@dataclass
class RankProcess:
    """A rank of this host, as its launcher knows it."""

    number: int
    """What the template calls it."""
    channel: MessageSocket
    say: Callable[[str], None]
    """Told what the rank wants shown."""
    on_slot: Callable[["RankProcess", Message], None]
    """Told about the memory of the rank's snapshots."""
    kernel_killed: Callable[[], bool]
    """True if the kernel has just killed a process for want of memory, which is taken for this one."""
    on_straggler: Callable[[Straggler], None]
    """Told that the others wait for the rank most of the time, or no longer do."""
    row_servers: Callable[[int], RowServerAddress]
    """Starts row servers, at least so many; returns where they are found."""
    pid: int | None = None
    """None until the template has reported it, and after the process has ended."""
    page: RankPage | None = None
    """How far the rank is; None until it has begun."""
    rank: int = 0
    """Rank in the current generation."""
    result: str | None = None
    """What the rank returned in the current generation; None if it has not ended it."""
    failure: RankFailure | None = None
    """Why the rank could not end the current generation."""
    stack: StackDump | None = None
    """Where the rank says what it executes if the interpreter lock is held; None until it has begun."""
    is_killed: bool = False
    """True from `kill` on; the process ends a little later."""
    exit_status: int | None = None
    """None while the process lives."""

    @property
    def has_exited(self) -> bool:
        return self.exit_status is not None

    @property
    def has_left(self) -> bool:
        """True if the rank is no longer in the current generation."""
        return self.has_exited or self.result is not None or self.failure is not None

    @property
    def can_go_on(self) -> bool:
        """True if the process can take part in another generation."""
        has_failed = self.failure is not None and not self.failure.lost_connection
        return self.has_left and not self.has_exited and not self.is_killed and not has_failed

    def assign(self, assignment: Assignment, snapshots: Mapping[int, SnapshotMemory]) -> None:
        """Begin a generation. `snapshots`: those of this host that it may continue from, by rank."""
        self.rank = assignment.rank
        self.result = self.failure = None
        if self.exit_status is not None:  # since the generation before
            self.failure = self._end(self.exit_status)
            return
        for rank, memory in snapshots.items():
            self.channel.send({"snapshot_of": rank}, memory.descriptor)
        self.channel.send({"assignment": to_plain(assignment)})

    def stop(self, name: SignalName) -> None:
        """Ask the rank to finish its step and end."""
        self.channel.send({"stop": name})

    def leave(self, generation: int) -> None:
        """Tell the rank to leave a generation at once."""
        self.channel.send({"leave": generation})

    def regroup(self, generation: int) -> None:
        """Ask the rank to leave a generation after the next snapshot."""
        self.channel.send({"regroup": generation})

    def give_up(self, what: str, line: str = "") -> None:
        """Kill the rank, because it no longer answers. `what`: what was seen of it. `line`: where it is, if known."""
        line = line or (self.page.line if self.page is not None else "")
        text = f"{what}, in {line}" if line else what
        self.failure = RankFailure(rank=self.rank, time=time.time(), text=text, is_hang=True)
        self.kill()

    def close(self) -> None:
        """Let go of what was shared with the process."""
        self.channel.close()
        if self.stack is not None:
            self.stack.close()
            self.stack = None

    def kill(self) -> None:
        self.is_killed = True
        if self.pid is not None:
            kill_process(self.pid)

    def read(self) -> None:
        """Take in what the rank has said."""
        for message in self.channel.receive_waiting():
            self._take(message)

    def exited(self, status: int) -> None:
        """Take in that the process has ended."""
        self.read()
        self.pid, self.exit_status = None, status
        if self.failure is None and self.result is None:
            self.failure = self._end(status)

    def _end(self, status: int) -> RankFailure:
        is_out_of_memory = status == -signal.SIGKILL and self.kernel_killed()
        return RankFailure(rank=self.rank, time=time.time(), exit_status=status, is_out_of_memory=is_out_of_memory)

    def _take(self, message: Message) -> None:
        if "result" in message:
            self.result = message["result"]
        elif "failure" in message:
            self.failure = RankFailure(rank=self.rank, **message["failure"])
            if _KILLED_WORKER in self.failure.text and self.kernel_killed():
                self.failure = replace(self.failure, is_out_of_memory=True)
        elif "page" in message:
            self.page = RankPage(self.channel.take_descriptor())
        elif "stack" in message:
            self.stack = StackDump(self.channel.take_descriptor())
        elif "slot" in message:
            self.on_slot(self, message)
        elif "row_servers" in message:
            self.channel.send({"row_servers": to_plain(self.row_servers(message["row_servers"]))})
        elif "straggles" in message:
            self.on_straggler(Straggler(rank=self.rank, **message["straggles"]))
        else:
            self.say(message["say"])
