"""A server on one address that lets only those in who know the job's key."""

import asyncio
import logging
import socket
import time
from contextlib import suppress

from onecurve.coordination.channel import HELLO_BYTES, PROOF_BYTES, ServerHandshake
from onecurve.coordination.connection import Connection, address_text
from onecurve.coordination.errors import CoordinationError
from onecurve.coordination.strangers import Strangers

TICK_SECONDS = 0.1
_BACKLOG = 4096
_ACCEPT_AT_ONCE = 128
"""Connections accepted before the others are served again."""
_FULL_SECONDS = 1.0
"""Pause after the process has run out of file descriptors."""

_log = logging.getLogger(__name__)


class AuthenticatedServer:
    """Accepts connections. A subclass says how they are served (`new_connection`).

    Takes a socket that is bound already, so that its port can be announced before the server starts. Expects the
    limit of open files (RLIMIT_NOFILE) to exceed the number of clients by about 2,100.
    """

    def __init__(self, listener: socket.socket, job_key: bytes) -> None:
        host = listener.getsockname()[0]
        if host in ("0.0.0.0", "::"):
            raise CoordinationError(f"the server would listen on all interfaces ({host}): bind it to one address")
        self.job_key = job_key
        self.strangers = Strangers()
        self.connections: dict[bytes, AcceptedConnection] = {}
        """The authenticated connections by session."""
        self._listener = listener
        self._tasks: list[asyncio.Task[None]] = []

    def new_connection(self) -> "AcceptedConnection":
        raise NotImplementedError

    def tick(self) -> None:
        """Called many times per second."""
        self.strangers.drop_late(time.monotonic())

    @property
    def address(self) -> str:
        return address_text(self._listener.getsockname())

    def start(self) -> None:
        """Begin to accept connections, in the running event loop."""
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        self._tasks = [asyncio.create_task(self._accept()), asyncio.create_task(self._keep_ticking())]

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

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()

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
            connecting = (loop.connect_accepted_socket(self.new_connection, each) for each in sockets)
            await asyncio.gather(*connecting, return_exceptions=True)


class AcceptedConnection(Connection):
    """The server's side of a connection: verifies the client before it takes its messages."""

    def __init__(self, server: AuthenticatedServer) -> None:
        super().__init__()
        self._accepted_by = server
        self._handshake_steps: ServerHandshake | None = ServerHandshake(server.job_key)
        self._session: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._expect(HELLO_BYTES)
        self._accepted_by.strangers.add(self, time.monotonic())

    def handshake_received(self, data: bytes) -> None:
        assert self._handshake_steps is not None
        if len(data) == HELLO_BYTES:
            self._write_handshake(self._handshake_steps.challenge(data))
            self._expect(PROOF_BYTES)
            return
        self._session, channel = self._handshake_steps.accept(data)
        self._handshake_steps = None
        self._open(channel)
        server = self._accepted_by
        server.strangers.remove(self)
        older = server.connections.get(self._session)
        if older is not None:  # the client has given it up: what may still arrive there must not be carried out late
            older.abort()
        server.connections[self._session] = self

    def closed(self, error: Exception | None) -> None:  # noqa: ARG002
        server = self._accepted_by
        server.strangers.remove(self)
        if self._session is not None and server.connections.get(self._session) is self:
            del server.connections[self._session]
