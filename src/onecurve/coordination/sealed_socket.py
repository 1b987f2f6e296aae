"""A blocking socket that carries sealed messages, for threads that send or receive much."""

import secrets
import socket
from collections.abc import Iterator

from onecurve.coordination.channel import (
    CHALLENGE_BYTES,
    CODE_BYTES,
    HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    SESSION_BYTES,
    Channel,
    ClientHandshake,
    message_bytes,
)


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
        length = message_bytes(memoryview(_receive(self._socket, HEADER_BYTES)), 0)
        return self._channel.open(_receive(self._socket, length), _receive(self._socket, CODE_BYTES))

    def send_all(self, data: memoryview) -> None:
        """Send data of any size, in several messages."""
        for begin, end in _pieces(len(data)):
            self.send(bytes(data[begin:end]))

    def receive_into(self, target: memoryview) -> None:
        """Receive what `send_all` has sent; it must have the size of `target`."""
        for begin, end in _pieces(len(target)):
            piece = self.receive()
            if len(piece) != end - begin:
                raise ConnectionError(f"{len(piece)} bytes arrived instead of {end - begin}")
            target[begin:end] = piece

    def shut_down(self) -> None:
        """Wake a thread that is sending or receiving."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def connect_with_key(host: str, port: int, key: bytes, seconds: float) -> tuple[socket.socket, Channel]:
    """Connect to a server that knows the key; return the connection, and the channel that seals its messages."""
    connected = socket.create_connection((host, port), seconds)
    try:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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
    for begin in range(0, size, MAX_MESSAGE_BYTES):
        yield begin, min(begin + MAX_MESSAGE_BYTES, size)


def _receive(connected: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connected.recv(size - len(received))
        if not piece:
            raise ConnectionError("the connection was closed")
        received += piece
    return bytes(received)
