"""How a connection to a row server begins: both sides prove that they know the job's key; the client says who it is.

The proof is that of the coordination service. Between machines, all of it is in TLS, see `encryption`.
"""

import asyncio
import secrets
import socket
import ssl
import struct
from dataclasses import dataclass

import msgspec

from onecurve.coordination.channel import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    PROOF_BYTES,
    SESSION_BYTES,
    ClientHandshake,
    ServerHandshake,
)
from onecurve.coordination.sealed_socket import connect_with_key
from onecurve.describe.errors import OnecurveError

_SECONDS = 5.0
"""A greeting takes at most this long."""
_RANK_SECONDS = 1.0
"""The same for a rank, which then looks whether another server has taken over."""
_MAX_BYTES = 1 << 20
BUFFER_BYTES = 1 << 24
"""What arrives is read ahead up to this size: frames are read in few pieces."""
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Greeting:
    """Who opens a connection."""

    name: str

    def encoded(self) -> bytes:
        text = msgspec.msgpack.encode(self)
        return _LENGTH.pack(len(text)) + text


def connect_rank(address: str, key: bytes, greeting: Greeting, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Connect a rank to a server."""
    host, _, port = address.rpartition(":")
    connected, _ = connect_with_key(host, int(port), key, _RANK_SECONDS, tls)
    connected.sendall(greeting.encoded())
    return connected


async def connect_server(
    address: str, key: bytes, greeting: Greeting, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect a server to another one."""
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(_SECONDS):
        reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, limit=BUFFER_BYTES)
        try:
            handshake = ClientHandshake(key, secrets.token_bytes(SESSION_BYTES))
            writer.write(handshake.hello())
            proof, _ = handshake.prove(await reader.readexactly(CHALLENGE_BYTES))
            writer.write(proof + greeting.encoded())
        except BaseException:
            writer.close()
            raise
    return reader, writer


async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> Greeting:
    """Verify who opens a connection. Raises an OnecurveError if it does not know the key, or says nothing."""
    handshake = ServerHandshake(key)
    try:
        async with asyncio.timeout(_SECONDS):
            writer.write(handshake.challenge(await reader.readexactly(HELLO_BYTES)))
            handshake.accept(await reader.readexactly(PROOF_BYTES))
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            if length > _MAX_BYTES:
                raise OnecurveError(f"a greeting of {length:,} bytes was announced")
            return msgspec.msgpack.decode(await reader.readexactly(length), type=Greeting)
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError) as error:
        raise OnecurveError(f"it has not said who it is ({type(error).__name__})") from None
