"""A worker's connection to the run that it works for."""

import select
import ssl
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TypeVar

from onecurve.describe.errors import OnecurveError
from onecurve.job.row_point import StepVerdict
from onecurve.servers.greeting import Greeting, connect_rank
from onecurve.servers.ticket_messages import (
    LENGTH_BYTES,
    Alive,
    Ask,
    AskNumber,
    Done,
    End,
    Failed,
    Join,
    Joined,
    Number,
    Ticket,
    TicketMessage,
    announced,
    decoded,
    encoded,
)

_ALIVE_SECONDS = 1.0

Kind = TypeVar("Kind", bound=TicketMessage)


class LostRunError(OnecurveError):
    """The run does not answer, or does not count on this worker any longer."""


class TicketClient:
    """Asks for tickets. Says every second that this process lives."""

    def __init__(self, address: str, key: bytes, tls: ssl.SSLContext | None = None) -> None:
        try:
            self._socket = connect_rank(address, key, Greeting("worker"), tls)
        except OSError as error:
            raise LostRunError(f"the run cannot be reached at {address} ({error.strerror or error})") from None
        self._socket.settimeout(None)
        self._using = threading.Lock()
        """Held by the thread that sends or receives: a connection with TLS cannot be used by two at the same time."""
        self._is_closed = threading.Event()
        self._is_lost = False
        threading.Thread(target=self._stay_alive, name="onecurve worker", daemon=True).start()

    def join(self, job: Mapping[str, str], is_own: bool) -> Joined:
        """Take part. `job`: the fingerprint of this worker's. `is_own`: the run has started it."""
        return self._ask(Join(job, is_own), Joined)

    def check(self) -> None:
        """Raise a LostRunError if the connection is lost."""
        if self._is_lost:
            raise LostRunError("the connection to the run is lost")

    def ticket(self, done: Done | None) -> Ticket | None:
        """Return the next ticket, and have the last one counted; None if there is nothing more to do."""
        answer = self._ask(done or Ask(), TicketMessage)
        if not isinstance(answer, Ticket | End):
            raise LostRunError(f"the run has answered {type(answer).__name__}")
        return answer if isinstance(answer, Ticket) else None

    def number_step(self) -> tuple[int, Mapping[int, StepVerdict]]:
        """Return the number of the row step in which the worker pushes, and the verdicts on the latest ones."""
        answer = self._ask(AskNumber(), Number)
        return answer.row_step, answer.verdicts

    def fail(self, text: str, lost_rows: bool) -> None:
        """Say why this worker cannot go on. `lost_rows`: the run can be started again from its checkpoint."""
        self._send(Failed(text, lost_rows))

    def close(self) -> None:
        self._is_closed.set()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def _ask(self, message: TicketMessage, kind: type[Kind]) -> Kind:
        self._send(message)
        answer = self._receive()
        if isinstance(answer, Failed):
            raise OnecurveError(answer.text)
        if not isinstance(answer, kind):
            raise LostRunError(f"the run has answered {type(answer).__name__}")
        return answer

    def _send(self, message: TicketMessage) -> None:
        try:
            with self._using:
                self._socket.sendall(encoded(message))
        except OSError as error:
            raise LostRunError(f"the connection to the run is lost ({error.strerror or error})") from None

    def _receive(self) -> TicketMessage:
        return decoded(self._exactly(announced(self._exactly(LENGTH_BYTES))))

    def _exactly(self, length: int) -> bytes:
        found = bytearray()
        while len(found) < length:
            try:
                if not self._has_received():
                    continue
                with self._using:
                    piece = self._socket.recv(length - len(found))
            except OSError as error:
                raise LostRunError(f"the connection to the run is lost ({error.strerror or error})") from None
            if not piece:
                raise LostRunError("the run has closed the connection")
            found += piece
        return bytes(found)

    def _has_received(self) -> bool:
        """Wait for a short time until there is something to receive."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        return bool(select.select([self._socket], [], [], _ALIVE_SECONDS)[0])

    def _stay_alive(self) -> None:
        while not self._is_closed.wait(_ALIVE_SECONDS):
            try:
                self._send(Alive())
            except LostRunError:
                self._is_lost = True
                return
