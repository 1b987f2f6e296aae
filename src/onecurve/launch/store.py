"""Serves the store of a generation from a process that runs an event loop."""

import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onecurve.coordination.channel import JOB_KEY_BYTES
from onecurve.coordination.store_server import StoreServer
from onecurve.describe.generation import StoreAddress
from onecurve.device.file_limit import raise_file_limit


@asynccontextmanager
async def served_store(address: str) -> AsyncIterator[StoreAddress]:
    """Serve a new store, with a key of its own, at an address of this host; its port is bound before it is known."""
    raise_file_limit()
    listener = socket.create_server((address, 0))
    key = secrets.token_bytes(JOB_KEY_BYTES)
    server = StoreServer(listener, key)
    server.start()
    try:
        yield StoreAddress(address, listener.getsockname()[1], key.hex())
    finally:
        await server.close()
