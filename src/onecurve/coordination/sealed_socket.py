"""A blocking socket that carries sealed messages, for threads that send or receive much."""

import secrets
import socket
import ssl
from collections.abc import Iterator

from onecurve.coordination.channel import (
    CHALLENGE_BYTES,
    CODE_BYTES,
    HEADER_BYTES,
    SESSION_BYTES,
    Channel,
    ClientHandshake,
    message_bytes,
)

_PIECE_BYTES = 2**20
"""Fits in a processor's cache, where it is read again after it was hashed."""


class SealedSocket:
    """One side of an authenticated connection. Errors of the connection are OSErrors."""

    def __init__(self, connected: socket.socket, channel: Channel) -> None:
        self._socket, self._channel = connected, channel

    @staticmethod
    def connect(host: str, port: int, key: bytes, seconds: float) -> "SealedSocket":
        """Connect to a server that knows the key. `seconds`: how long this may take."""
        return SealedSocket(*connect_with_key(host, port, key, seconds))

    def send(self, text: bytes) -> None:
        self._socket.sendall(self._channel.seal(text))

    def receive(self) -> bytes:
        text = _receive(self._socket, self._announced())
        self._channel.open(text, _receive(self._socket, CODE_BYTES))
        return text

    def send_all(self, data: memoryview) -> None:
        """Send data of any size, in several messages."""
        for begin, end in _pieces(len(data)):
            piece = data[begin:end]
            header, code = self._channel.seal_around(piece)
            for part in (header, piece, code):  # no copy of the data is made
                self._socket.sendall(part)

    def receive_into(self, target: memoryview) -> None:
        """Receive what `send_all` has sent; it must have the size of `target`.

        If this raises, `target` may hold data that somebody else has sent.
        """
        for begin, end in _pieces(len(target)):
            length = self._announced()
            if length != end - begin:
                raise ConnectionError(f"{length} bytes arrive instead of {end - begin}")
            _fill(self._socket, target[begin:end])
            self._channel.open(target[begin:end], _receive(self._socket, CODE_BYTES))

    def limit(self, seconds: float) -> None:
        """Raise a TimeoutError if the other side is silent for so long while something is received."""
        self._socket.settimeout(seconds)

    def shut_down(self) -> None:
        """Wake a thread that is sending or receiving."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _announced(self) -> int:
        """Receive the header of the next message; return the size of its content."""
        return message_bytes(memoryview(_receive(self._socket, HEADER_BYTES)), 0)


def connect_with_key(
    host: str, port: int, key: bytes, seconds: float, tls: ssl.SSLContext | None = None
) -> tuple[socket.socket, Channel]:
    """Connect to a server that knows the key; return the connection, and the channel that seals its messages."""
    connected = socket.create_connection((host, port), seconds)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            connected = tls.wrap_socket(connected)
        handshake = ClientHandshake(key, secrets.token_bytes(SESSION_BYTES))
        connected.sendall(handshake.hello())
        proof, channel = handshake.prove(_receive(connected, CHALLENGE_BYTES))
        connected.sendall(proof)
        connected.settimeout(None)
    except BaseException:
        connected.close()
        raise
    return connected, channel


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, size, _PIECE_BYTES):
        yield begin, min(begin + _PIECE_BYTES, size)


def _receive(connected: socket.socket, size: int) -> bytes:
    received = bytearray(size)
    _fill(connected, memoryview(received))
    return bytes(received)


def _fill(connected: socket.socket, target: memoryview) -> None:
    while target:
        received = connected.recv_into(target)
        if not received:
            raise ConnectionError("the connection was closed")
        target = target[received:]
