"""Serves the state of the in-memory backend to other hosts, on one address."""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from onecurve.coordination.channel import HELLO_BYTES, PROOF_BYTES, ChannelError, ServerHandshake
from onecurve.coordination.clock import ServingClock
from onecurve.coordination.connection import Connection, address_text
from onecurve.coordination.entry import Change, check_key
from onecurve.coordination.errors import CoordinationError, LeaseLostError
from onecurve.coordination.state import Deliver, KeyValueState
from onecurve.coordination.strangers import Strangers

TICK_SECONDS = 0.1
"""Leases expire at most this late."""
_BACKLOG = 4096
_ACCEPT_AT_ONCE = 128
"""Connections accepted before the others are served again."""
_FULL_SECONDS = 1.0
"""Pause after the process has run out of file descriptors."""
_LISTING_BYTES = 2**18
"""About the size of one message of a long listing."""

_log = logging.getLogger(__name__)
_Field = TypeVar("_Field")


class Server:
    """A state machine and the listener through which other hosts reach it.

    Takes a socket that is bound already, so that its port can be announced before the server starts. Expects the
    limit of open files (RLIMIT_NOFILE) to exceed the number of hosts by about 2,100.
    """

    def __init__(self, listener: socket.socket, job_key: bytes) -> None:
        host = listener.getsockname()[0]
        if host in ("0.0.0.0", "::"):
            raise CoordinationError(f"the server would listen on all interfaces ({host}): bind it to one address")
        self.state = KeyValueState()
        self.clock = ServingClock()
        self.job_key = job_key
        self.strangers = Strangers()
        self.connections: dict[bytes, ServerConnection] = {}
        """The authenticated connections by session."""
        self._listener = listener
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        return address_text(self._listener.getsockname())

    def start(self) -> None:
        """Begin to accept connections, in the running event loop."""
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._tasks = [asyncio.create_task(self._accept()), asyncio.create_task(self._tick())]

    async def close(self) -> None:
        """Drop all connections and close the listener."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._listener.close()
        self.strangers.drop_all()
        for connection in [*self.connections.values()]:
            connection.abort()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next turn

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.state.expire(self.clock.tick())
            self.strangers.drop_late(time.monotonic())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            room = await self.strangers.room()
            try:
                sockets = [(await loop.sock_accept(self._listener))[0]]
                with suppress(BlockingIOError):
                    while len(sockets) < min(room, _ACCEPT_AT_ONCE):
                        sockets.append(self._listener.accept()[0])
            except OSError as error:
                _log.warning("%s cannot accept connections: %s (raise the limit 'ulimit -n')", self.address, error)
                await asyncio.sleep(_FULL_SECONDS)
                continue
            for each in sockets:
                each.setblocking(False)
            connecting = (loop.connect_accepted_socket(lambda: ServerConnection(self), each) for each in sockets)
            await asyncio.gather(*connecting, return_exceptions=True)


class ServerConnection(Connection):
    """The server's side of a connection: verifies the client, then answers its requests."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self._handshake_steps: ServerHandshake | None = ServerHandshake(server.job_key)
        self._session: bytes | None = None
        self._watches: dict[int, tuple[str, Deliver]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._expect(HELLO_BYTES)
        self._server.strangers.add(self, time.monotonic())

    def handshake_received(self, data: bytes) -> None:
        assert self._handshake_steps is not None
        if len(data) == HELLO_BYTES:
            self._write_handshake(self._handshake_steps.challenge(data))
            self._expect(PROOF_BYTES)
            return
        self._session, channel = self._handshake_steps.accept(data)
        self._handshake_steps = None
        self._open(channel)
        self._server.strangers.remove(self)
        older = self._server.connections.get(self._session)
        if older is not None:  # the client has given it up: what may still arrive there must not be carried out late
            older.abort()
        self._server.connections[self._session] = self

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002
        self._server.strangers.remove(self)
        if self._session is not None and self._server.connections.get(self._session) is self:
            del self._server.connections[self._session]
        for prefix, deliver in self._watches.values():
            self._server.state.unwatch(prefix, deliver)
        self._watches.clear()

    def message_received(self, message: Any) -> None:
        operation = _OPERATIONS.get(_field(message, "op", str))
        if operation is None:
            raise ChannelError(f"unknown request {message['op']!r}: use the same version of onecurve on every host")
        try:
            reply = {"id": message.get("id"), "result": operation(self, message)}
        except LeaseLostError as error:
            reply = {"id": message.get("id"), "lease_lost": str(error)}
        if reply["id"] is not None:
            self.send(reply)

    def grant(self, message: Mapping[str, Any]) -> None:
        seconds = float(_field(message, "seconds", float))
        self._server.state.grant(_field(message, "lease", int), seconds, self._server.clock.now())

    def keep_alive(self, message: Mapping[str, Any]) -> bool:
        return self._server.state.keep_alive(_field(message, "lease", int), self._server.clock.now())

    def revoke(self, message: Mapping[str, Any]) -> None:
        self._server.state.revoke(_field(message, "lease", int))

    def create(self, message: Mapping[str, Any]) -> bool:
        return self._server.state.create(_key(message), _field(message, "value", str), *_lease_and_token(message))

    def put(self, message: Mapping[str, Any]) -> None:
        self._server.state.put(_key(message), _field(message, "value", str), *_lease_and_token(message))

    def get(self, message: Mapping[str, Any]) -> tuple[str, int] | None:
        return self._server.state.get(_key(message))

    def compare_and_set(self, message: Mapping[str, Any]) -> bool:
        version, value = _field(message, "version", int), _field(message, "value", str)
        return self._server.state.compare_and_set(_key(message), version, value, _field(message, "token", str))

    def delete(self, message: Mapping[str, Any]) -> bool:
        return self._server.state.delete(_key(message), _field(message, "version", int))

    def watch(self, message: Mapping[str, Any]) -> None:
        number, prefix = _field(message, "watch", int), _field(message, "prefix", str)
        if number in self._watches:
            raise ChannelError(f"watch {number} exists already")
        self._send_listing(number, prefix)

        def deliver(changes: Sequence[Change]) -> None:
            self.send({"watch": number, "changes": changes})

        self._watches[number] = prefix, deliver
        self._server.state.watch(prefix, deliver)

    def unwatch(self, message: Mapping[str, Any]) -> None:
        watched = self._watches.pop(_field(message, "watch", int), None)
        if watched is not None:
            self._server.state.unwatch(*watched)

    def _send_listing(self, number: int, prefix: str) -> None:
        """Send the present keys in several messages, the last of which has the revision."""
        piece: list[Change] = []
        size = 0
        for change in self._server.state.listing(prefix):
            piece.append(change)
            size += len(change.value or "")
            if size >= _LISTING_BYTES:
                self.send({"watch": number, "listing": piece})
                piece, size = [], 0
        self.send({"watch": number, "listing": piece, "revision": self._server.state.revision})


_OPERATIONS: dict[str, Callable[[ServerConnection, Mapping[str, Any]], Any]] = {
    operation.__name__: operation
    for operation in (
        ServerConnection.grant,
        ServerConnection.keep_alive,
        ServerConnection.revoke,
        ServerConnection.create,
        ServerConnection.put,
        ServerConnection.get,
        ServerConnection.compare_and_set,
        ServerConnection.delete,
        ServerConnection.watch,
        ServerConnection.unwatch,
    )
}


def _field(message: Mapping[str, Any], name: str, kind: type[_Field]) -> _Field:
    """Return a field of a request; raise ChannelError if it is missing or of another type."""
    value = message.get(name) if isinstance(message, dict) else None
    if type(value) is not kind:
        raise ChannelError(f"a request has no {kind.__name__} {name!r}: use the same version of onecurve on every host")
    return value


def _key(message: Mapping[str, Any]) -> str:
    key = _field(message, "key", str)
    check_key(key)
    return key


def _lease_and_token(message: Mapping[str, Any]) -> tuple[int | None, str]:
    lease = message.get("lease")
    return None if lease is None else _field(message, "lease", int), _field(message, "token", str)
