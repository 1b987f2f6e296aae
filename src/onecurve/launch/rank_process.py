"""The launcher's side of a rank process."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from onecurve.describe.assignment import Assignment, RankFailure
from onecurve.describe.convert import to_plain
from onecurve.describe.errors import SignalName
from onecurve.launch.message_socket import Message, MessageSocket
from onecurve.launch.process import kill_process


@dataclass
class RankProcess:
    """A rank of this host, as its launcher knows it."""

    local_rank: int
    channel: MessageSocket
    say: Callable[[str], None]
    """Told what the rank wants shown."""
    pid: int | None = None
    """None until the template has reported it, and after the process has ended."""
    rank: int = 0
    """Rank in the current generation."""
    result: str | None = None
    """What the rank returned in the current generation; None if it has not ended it."""
    failure: RankFailure | None = None
    has_exited: bool = False

    def assign(self, assignment: Assignment) -> None:
        """Begin a generation."""
        self.rank, self.result = assignment.rank, None
        self.channel.send({"assignment": to_plain(assignment)})

    def stop(self, name: SignalName) -> None:
        """Ask the rank to finish its step and end."""
        self.channel.send({"stop": name})

    def kill(self) -> None:
        if self.pid is not None:
            kill_process(self.pid)

    def read(self) -> None:
        """Take in what the rank has said."""
        for message in self.channel.receive_waiting():
            self._take(message)

    def exited(self, status: int) -> None:
        """Take in that the process has ended."""
        self.read()
        self.pid, self.has_exited = None, True
        if self.failure is None and self.result is None:
            self.failure = RankFailure(rank=self.rank, time=time.time(), exit_status=status)

    def _take(self, message: Message) -> None:
        if "result" in message:
            self.result = message["result"]
        elif "failure" in message:
            self.failure = RankFailure(rank=self.rank, **message["failure"])
        else:
            self.say(message["say"])
