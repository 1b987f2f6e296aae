"""Serves the snapshots of this host to ranks of other hosts, and keeps copies for another keeper.

Who does not know the key of the generation is turned away by the event loop, as everywhere. Snapshots are large, and
hashing them must not delay the keeper's leases: each connection is then served by a thread.
"""

import json
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from onecurve.coordination.authenticated_server import AcceptedConnection, AuthenticatedServer
from onecurve.coordination.channel import JOB_KEY_BYTES
from onecurve.coordination.request import message_field
from onecurve.coordination.sealed_socket import SealedSocket
from onecurve.coordination.threaded_connection import ThreadedConnection
from onecurve.device.snapshot_memory import SnapshotMemory
from onecurve.launch.snapshots import Snapshots


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

    def new_connection(self) -> AcceptedConnection:
        return ThreadedConnection(self, partial(_answer, self.snapshots), "onecurve snapshots")


def _answer(snapshots: Snapshots, client: SealedSocket) -> None:
    """Answer one request of a client."""
    request = json.loads(client.receive())
    generation, rank, step = (message_field(request, name, int) for name in ("generation", "rank", "step"))
    operation = message_field(request, "op", str)
    if operation == "keep":
        _keep(snapshots, client, request, generation, rank, step)
        return
    memory = snapshots.of(generation, step).get(rank)
    if memory is None:
        client.send(b"{}")
    elif operation == "texts":
        client.send(json.dumps({"size": memory.size}).encode())
        for text in memory.texts():
            client.send(text)
    else:
        begin, size = message_field(request, "begin", int), message_field(request, "size", int)
        client.send(b'{"size":0}')
        client.send_all(memory.data[begin : begin + size])


def _keep(snapshots: Snapshots, client: SealedSocket, request: Any, generation: int, rank: int, step: int) -> None:
    """Receive a copy of another keeper's snapshot."""
    memory = SnapshotMemory.create(message_field(request, "size", int))
    root, manifest = client.receive(), client.receive()
    client.receive_into(memory.data)
    if message_field(json.loads(client.receive()), "unchanged", bool):
        memory.complete(step, root, manifest)
        snapshots.keep(generation, rank, message_field(request, "slot", int), memory)
    client.send(b"{}")
