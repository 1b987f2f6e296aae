"""A rank's view of the process that launched it: it gives assignments, asks to stop, and is told how they end."""

from collections.abc import Iterator

from onecurve.describe.assignment import Assignment
from onecurve.describe.convert import from_plain
from onecurve.describe.errors import SignalName
from onecurve.launch.failure_report import report_of
from onecurve.launch.message_socket import Message, MessageSocket


class Launcher:
    """The other end of a rank's socket. Calling it returns True once the launcher has asked the rank to stop."""

    def __init__(self, channel: MessageSocket) -> None:
        self._channel = channel
        self._waiting: list[Message] = []
        self._stop: SignalName | None = None

    def assignments(self) -> Iterator[Assignment]:
        """Wait for the next generation and yield it; end when there is none."""
        while (message := self._next()) is not None:
            if "assignment" in message:
                yield from_plain(Assignment, message["assignment"], "assignment")
            else:
                self._stop = message["stop"]

    def say(self, text: str) -> None:
        """Show a short text to the user."""
        self._channel.send({"say": text})

    def finished(self, result: str) -> None:
        """Say that this generation's work is done."""
        self._channel.send({"result": result})

    def failed(self, error: BaseException) -> None:
        """Say that this rank cannot go on."""
        self._channel.send({"failure": report_of(error)})

    def __call__(self) -> bool:
        for message in self._channel.receive_waiting():
            if "stop" in message:
                self._stop = message["stop"]
            else:
                self._waiting.append(message)
        return self._stop is not None or self._channel.is_closed

    @property
    def signal(self) -> SignalName:
        """The signal that requested the stop; another rank may have received it."""
        self()
        return self._stop or ("SIGKILL" if self._channel.is_closed else "SIGINT")

    def _next(self) -> Message | None:
        return self._waiting.pop(0) if self._waiting else self._channel.receive()
