"""Serves the snapshots of this host to ranks of other hosts, and keeps copies for another keeper.

Who does not know the key of the generation is turned away by the event loop, as everywhere. Snapshots are large, and
hashing them must not delay the keeper's leases: each connection is then served by a thread.
"""

import json
import logging
import secrets
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onecurve.coordination.authenticated_server import AcceptedConnection, AuthenticatedServer
from onecurve.coordination.channel import JOB_KEY_BYTES, Channel
from onecurve.coordination.errors import CoordinationError
from onecurve.coordination.request import message_field
from onecurve.coordination.sealed_socket import SealedSocket
from onecurve.device.snapshot_memory import SnapshotMemory
from onecurve.launch.snapshots import Snapshots

_log = logging.getLogger(__name__)


@asynccontextmanager
async def served_snapshots(address: str) -> AsyncIterator["SnapshotServer"]:
    """Serve the snapshots of this host at one of its addresses."""
    server = SnapshotServer(socket.create_server((address, 0)))
    server.start()
    try:
        yield server
    finally:
        await server.close()


class SnapshotServer(AuthenticatedServer):
    """The snapshots of one host. Set `job_key` to the key of each generation."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener, secrets.token_bytes(JOB_KEY_BYTES))  # nobody's, until the first generation
        self.snapshots = Snapshots()
        self.port = int(listener.getsockname()[1])

    def new_connection(self) -> "AcceptedConnection":
        return _Entrance(self)


class _Entrance(AcceptedConnection):
    """A connection until its client is known. A thread then takes its socket over."""

    def __init__(self, server: SnapshotServer) -> None:
        super().__init__(server)
        self._server = server

    def _open(self, channel: Channel) -> None:
        assert self._transport is not None
        taken = self._transport.get_extra_info("socket").dup()
        self._transport.pause_reading()  # what follows belongs to the thread
        taken.setblocking(True)
        service = _Service(SealedSocket(taken, channel), self._server.snapshots)
        threading.Thread(target=service.serve, name="onecurve snapshots", daemon=True).start()
        self.abort()


class _Service:
    """Answers one client."""

    def __init__(self, client: SealedSocket, snapshots: Snapshots) -> None:
        self._client, self._snapshots = client, snapshots

    def serve(self) -> None:
        try:
            while True:
                self._answer(json.loads(self._client.receive()))
        except (OSError, CoordinationError, ValueError) as error:
            _log.info("a connection to the snapshots has ended: %s", error)
        finally:
            self._client.close()

    def _answer(self, request: Any) -> None:
        generation, rank, step = (message_field(request, name, int) for name in ("generation", "rank", "step"))
        operation = message_field(request, "op", str)
        if operation == "keep":
            self._keep(request, generation, rank, step)
            return
        memory = self._snapshots.of(generation, step).get(rank)
        if memory is None:
            self._client.send(b"{}")
        elif operation == "texts":
            self._client.send(json.dumps({"size": memory.size}).encode())
            for text in memory.texts():
                self._client.send(text)
        else:
            begin, size = message_field(request, "begin", int), message_field(request, "size", int)
            self._client.send(b'{"size":0}')
            self._client.send_all(memory.data[begin : begin + size])

    def _keep(self, request: Any, generation: int, rank: int, step: int) -> None:
        """Receive a copy of another keeper's snapshot."""
        memory = SnapshotMemory.create(message_field(request, "size", int))
        root, manifest = self._client.receive(), self._client.receive()
        self._client.receive_into(memory.data)
        if message_field(json.loads(self._client.receive()), "unchanged", bool):
            memory.complete(step, root, manifest)
            self._snapshots.keep(generation, rank, message_field(request, "slot", int), memory)
        self._client.send(b"{}")
