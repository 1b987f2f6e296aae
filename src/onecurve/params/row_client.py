"""A rank's connections to the row servers: asks each primary once per request, and again if the view has changed."""

import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.describe.slots import SLOTS
from onecurve.job.row_point import StepVerdict
from onecurve.params.frame import HEADER_BYTES, decode, encode, lengths
from onecurve.params.messages import Answer, Message, Pull, Push, Pushed, Read, Refused, Rows
from onecurve.params.served_rows import RowsRead
from onecurve.params.slots import slots_of
from onecurve.params.step_log import RowCrew
from onecurve.params.table_holder import Gradients
from onecurve.params.view import View

_LOOK_SECONDS = 0.02
"""Time between two looks at the view while an answer is awaited."""
_PAUSE_SECONDS = 0.002
_SEND_SECONDS, _SLOWEST_BYTES = 1.0, 1e7
"""A frame is sent within a second, and one more for every ten million bytes."""

_READ_LIMIT = 1 << 26
"""Bytes of rows that are read at once."""

RECEIVED_ALL = 1 << 62
"""As the newest step of which a client has received the rows: no step must wait for it."""

Kind = TypeVar("Kind", bound=Answer)


class RowsLostError(OnecurveError):
    """No server has some of the rows that a rank needs."""

    def __init__(self, slots: Sequence[range], step: int | None) -> None:
        """`step`: the one after which they are needed; None if there is no copy at all."""
        names = ", ".join(f"{each.start} to {each.stop - 1}" for each in slots)
        what = "all servers that had them are gone" if step is None else f"no server can go back to row step {step}"
        super().__init__(f"the rows of the embedding tables in slots {names} are lost: {what}")


class Views(Protocol):
    """The newest view that this process knows."""

    def current(self) -> View: ...

    def report_dead(self, name: str) -> None:
        """Nobody listens at the address of a server."""


class RowClient:
    """One per rank and crew. All ranks of the crew must push every step.

    Several processes may be the same rank, if each of them pushes other steps.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        crew: RowCrew,
        views: Views,
        connect: Callable[[str], socket.socket],
        check: Callable[[], object] = lambda: None,
        first_pull: int = 0,
    ) -> None:
        """`name`: what servers call this rank. `connect`: address of a server → a connection. `check`: called every now
        and then while an answer is awaited; what it raises ends the waiting. `first_pull`: pulls are numbered from
        here; no two clients of a rank use the same numbers."""
        self._name, self._rank, self.crew, self._views, self._connect = name, rank, crew, views, connect
        self._check = check
        self._restarts = views.current().restarts
        self._connections: dict[str, _Connection] = {}
        self._selector = selectors.DefaultSelector()
        self.verdicts: dict[int, StepVerdict] = {}
        """On the latest steps."""
        self._pulls = first_pull
        self.received = crew.start
        """The newest step all of whose rows this rank has received."""
        self.points: tuple[int, ...] = ()
        """The steps after which later crews may begin."""

    def decide(self, step: int, verdict: StepVerdict) -> None:
        """Note the verdict on a step; the servers are told with the next request."""
        self.verdicts[step] = verdict
        for old in [number for number in self.verdicts if number < step - 1]:
            del self.verdicts[old]

    def pull(self, step: int, ids: Mapping[str, Tensor], may_be_newer: bool = False) -> dict[str, Tensor]:
        """Return the rows of these ids, which are distinct, as they must be for a step; or, if they may be newer, as
        they are now, but with all steps before this one."""
        self._pulls += 1
        slots = {name: slots_of(wanted) for name, wanted in ids.items()}
        rows: dict[str, Tensor] = {}
        wanted = torch.zeros(SLOTS, dtype=torch.bool)
        for of_table in slots.values():
            wanted[of_table] = True
        number = self._pulls

        def question(begin: int, end: int, about: Mapping[str, Any]) -> Message:
            parts = {name: ids[name].index_select(0, _within(slots[name], begin, end)) for name in ids}
            return Pull(**about, step=step, number=number, ids=parts, may_be_newer=may_be_newer)

        def take(answer: Rows, begin: int, end: int) -> None:
            for name, values in answer.rows.items():
                if name not in rows:
                    rows[name] = values.new_empty(ids[name].numel(), values.shape[1])
                rows[name].index_copy_(0, _within(slots[name], begin, end), values)

        self._ask(Rows, step, wanted, question, take, lambda answer: answer.number == number)
        return rows

    def push(self, step: int, gradients: Gradients) -> Tensor | None:
        """Send the gradients of a step; return the squares of the sums over all ranks, one number per slot, or None if
        the servers do not tell. Returns when all copies have them."""
        self.received = max(self.received, step)
        slots = {name: slots_of(ids) for name, (ids, _) in gradients.items()}
        squares = torch.zeros(SLOTS, dtype=torch.float64)
        are_told = True

        def question(begin: int, end: int, about: Mapping[str, Any]) -> Message:
            part = {}
            for name, (ids, lines) in gradients.items():
                within = _within(slots[name], begin, end)
                part[name] = ids.index_select(0, within), lines.index_select(0, within)
            return Push(**about, step=step, part=part)

        def take(answer: Pushed, begin: int, end: int) -> None:
            nonlocal are_told
            are_told = are_told and answer.squares is not None
            if answer.squares is not None:
                squares[begin:end] = answer.squares

        self._ask(Pushed, step, torch.ones(SLOTS, dtype=torch.bool), question, take, lambda _: True)
        return squares if are_told else None

    def read(
        self, step: int, tables: Sequence[str], slots: range, since: int, limit: int | None = None
    ) -> Iterator[RowsRead]:
        """Yield all rows of some tables and slots that have changed in the step `since` or later, as they must be for a
        step.

        `limit`: about how many bytes are read at once; 0 to count the rows only.
        """
        begin, limit = slots.start, _READ_LIMIT if limit is None else limit
        while begin < slots.stop:
            read, end = self._read_from(step, tables, range(begin, slots.stop), since, limit)
            yield read
            begin = read.end if limit else end

    def _read_from(
        self, step: int, tables: Sequence[str], slots: range, since: int, limit: int
    ) -> tuple[RowsRead, int]:
        """Read from the piece that has the first of these slots. Return also the first slot that is not in it."""
        self._pulls += 1
        number, found = self._pulls, list[tuple[RowsRead, int]]()
        wanted = torch.zeros(SLOTS, dtype=torch.bool)
        wanted[slots.start] = True

        def question(_: int, end: int, about: Mapping[str, Any]) -> Message:
            part = slots.start, min(end, slots.stop)
            return Read(**about, step=step, number=number, slots=part, since=since, limit=limit, tables=tuple(tables))

        def take(answer: Rows, _: int, end: int) -> None:
            found.append((msgspec.convert(answer.rows, RowsRead), min(end, slots.stop)))

        self._ask(Rows, step, wanted, question, take, lambda answer: answer.number == number)
        return found[0]

    def close(self) -> None:
        for name in [*self._connections]:
            self._drop(name)
        self._selector.close()

    def _ask(
        self,
        kind: type[Kind],
        step: int,
        wanted: Tensor,
        question: Callable[[int, int, Mapping[str, Any]], Message],
        take: Callable[[Kind, int, int], None],
        is_ours: Callable[[Kind], bool],
    ) -> None:
        """Ask the primaries of all wanted slots until each has answered."""
        asked: dict[str, _Connection] = {}
        view = View(epoch=0, pieces={})
        while bool(wanted.any()):
            self._check()
            if (newest := self._views.current()).epoch != view.epoch:
                view = newest
                asked.clear()
            if view.restarts != self._restarts:
                raise OnecurveError("another run has taken the row servers: one at a time can use their address")
            self._refuse_lost(view, wanted)
            self._send_questions(view, wanted, question, asked)
            for message in self._receive():
                piece = view.pieces.get(message.piece) if message.epoch == view.epoch else None
                if isinstance(message, Refused):
                    # A server has another view; one of both will know the newer one soon.
                    asked.pop(message.sender, None)
                    time.sleep(_PAUSE_SECONDS)
                    if message.lost is not None and piece is not None:
                        raise RowsLostError([range(message.piece, piece.end)], message.lost)
                elif piece is not None and isinstance(message, kind) and self._answers(message, step, is_ours):
                    take(message, message.piece, piece.end)
                    wanted[message.piece : piece.end] = False

    def _answers(self, message: Kind, step: int, is_ours: Callable[[Kind], bool]) -> bool:
        return message.step == step and message.crew == self.crew.number and is_ours(message)

    def _refuse_lost(self, view: View, wanted: Tensor) -> None:
        lost = [
            range(begin, piece.end)
            for begin, piece in view.pieces.items()
            if not piece.primary and bool(wanted[begin : piece.end].any())
        ]
        if lost:
            raise RowsLostError(lost, None)

    def _send_questions(
        self,
        view: View,
        wanted: Tensor,
        question: Callable[[int, int, Mapping[str, Any]], Message],
        asked: "dict[str, _Connection]",
    ) -> None:
        """Ask those that were not asked yet, or whose connection was lost since. `asked`: on which connections."""
        about = {
            "epoch": view.epoch,
            "sender": self._name,
            "rank": self._rank,
            "crew": self.crew,
            "received": self.received,
            "points": self.points,
            "verdicts": self.verdicts,
        }
        pieces: dict[str, list[tuple[int, int]]] = {}
        for begin, piece in view.pieces.items():
            if bool(wanted[begin : piece.end].any()):
                pieces.setdefault(piece.primary, []).append((begin, piece.end))
        for name, held in pieces.items():
            connection = self._connections.get(name)
            if connection is not None and asked.get(name) is connection:
                continue
            try:
                connection = self._connection(view, name)
                connection.send([question(begin, end, {**about, "piece": begin}) for begin, end in held])
                asked[name] = connection
            except ConnectionRefusedError:
                self._views.report_dead(name)
            except ssl.SSLCertVerificationError as error:
                raise OnecurveError(f"row server {name}: its certificate is not accepted ({error})") from None
            except OSError:
                self._drop(name)  # it is asked again

    def _connection(self, view: View, name: str) -> "_Connection":
        if name not in self._connections:
            connected = _Connection(self._connect(view.servers[name].address))
            self._connections[name] = connected
            self._selector.register(connected.socket, selectors.EVENT_READ, name)
        return self._connections[name]

    def _receive(self) -> Iterator[Message]:
        """What has arrived; nothing after a short time."""
        for key, _ in self._selector.select(_LOOK_SECONDS):
            try:
                yield from self._connections[key.data].receive()
            except OSError:
                self._drop(key.data)

    def _drop(self, name: str) -> None:
        if (connection := self._connections.pop(name, None)) is not None:
            self._selector.unregister(connection.socket)
            connection.socket.close()


class _Connection:
    """A connection to a server, and the frame that arrives on it."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._expect(bytearray(HEADER_BYTES))

    def send(self, messages: list[Message]) -> None:
        """Send a frame. Raises TimeoutError if the server does not take it in: it may be stopped, or cut off."""
        buffers = encode(messages)
        self.socket.settimeout(_SEND_SECONDS + sum(map(len, buffers)) / _SLOWEST_BYTES)
        for buffer in buffers:
            self.socket.sendall(buffer)

    def receive(self) -> list[Message]:
        """Take in what has arrived; return the messages that are complete."""
        messages: list[Message] = []
        while True:
            received = self.socket.recv_into(self._missing[0])
            if not received:
                raise ConnectionResetError("the server has closed the connection")
            self._missing[0] = self._missing[0][received:]
            if not self._missing[0]:
                self._missing.popleft()
            if not self._missing:
                messages += self._complete()
            if not isinstance(self.socket, ssl.SSLSocket) or not self.socket.pending():  # which no selector sees
                return messages

    def _expect(self, *parts: bytearray) -> None:
        """Receive these next, without another copy."""
        self._parts = parts
        self._missing = deque(memoryview(part) for part in parts if part)

    def _complete(self) -> list[Message]:
        """A header has arrived, or all that follows one."""
        if len(self._parts) == 1:
            body, tensors = lengths(bytes(self._parts[0]))
            self._expect(bytearray(body), bytearray(tensors))
            return [] if self._missing else self._complete()
        messages = decode(*self._parts)
        self._expect(bytearray(HEADER_BYTES))
        return messages


def _within(slots: Tensor, begin: int, end: int) -> Tensor:
    return ((slots >= begin) & (slots < end)).nonzero().squeeze(1)
