"""One TCP connection that carries sealed JSON messages, on either side."""

import asyncio
import logging
import socket
import threading
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from onecurve.coordination.channel import CODE_BYTES, HEADER_BYTES, Channel, ChannelError, message_bytes
from onecurve.coordination.errors import CoordinationError

MAX_UNSENT_BYTES = 64 * 2**20
"""A peer that reads so slowly that more waits for it is disconnected."""
_SILENT_SECONDS = 5
"""After this time without traffic, the kernel starts to ask whether the other host is still there."""
_ACKNOWLEDGE_SECONDS = 5
"""Data that the other host's kernel does not acknowledge for this time ends the connection."""
_READ_BYTES = 2**16

_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
_log = logging.getLogger(__name__)
_thread = threading.local()


class Connection(asyncio.BufferedProtocol):
    """A connection that begins with a handshake of fixed sizes and then carries messages.

    Until the handshake is finished, exactly the bytes of its next message are read from the socket, and nothing more.
    Subclasses say how many these are (`_expect`), take them (`handshake_received`) and open the channel (`_open`).
    """

    def __init__(self) -> None:
        self.received_bytes = 0
        self._channel: Channel | None = None
        self._transport: asyncio.Transport | None = None
        self._handshake: bytearray = bytearray()
        self._handshake_filled = 0
        self._partial = bytearray()
        """Received bytes of a message that is not complete yet."""
        self._outgoing: list[bytes] = []
        self._is_receiving = False
        self.addresses = ""
        """The other side and this one, for error messages."""

    def handshake_received(self, data: bytes) -> None:
        raise NotImplementedError

    def message_received(self, message: Any) -> None:
        raise NotImplementedError

    def closed(self, error: Exception | None) -> None:
        """Called once, when the connection has ended."""

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message, together with all others of this turn of the event loop."""
        if self._transport is None or self._channel is None:
            return
        if not self._outgoing and not self._is_receiving:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(self._channel.seal(_encode(message)))

    def abort(self, error: Exception | None = None) -> None:
        """End the connection at once."""
        if self._transport is not None:
            if error is not None:
                _log.warning("closed the connection with %s: %s", self.addresses, error)
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        _detect_lost_hosts(sock)
        other, own = (address_text(transport.get_extra_info(name)) for name in ("peername", "sockname"))
        self.addresses = f"{other} (from {own})"

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._outgoing.clear()
        self.closed(error)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        if self._channel is None:
            return memoryview(self._handshake)[self._handshake_filled :]
        return _read_buffer()

    def buffer_updated(self, count: int) -> None:
        self.received_bytes += count
        try:
            if self._channel is None:
                self._handshake_filled += count
                if self._handshake_filled == len(self._handshake):
                    self.handshake_received(bytes(self._handshake))
            else:
                self._is_receiving = True
                self._receive(_read_buffer()[:count])
                self._is_receiving = False
                self._flush()
        except (CoordinationError, msgspec.DecodeError) as error:
            self.abort(error)

    def _expect(self, count: int) -> None:
        """Read the next `count` bytes as one message of the handshake."""
        self._handshake, self._handshake_filled = bytearray(count), 0

    def _write_handshake(self, data: bytes) -> None:
        """Send bytes of the handshake, together with the messages of this turn of the event loop."""
        asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing.append(data)

    def _open(self, channel: Channel) -> None:
        """Finish the handshake."""
        self._handshake = bytearray()
        self._channel = channel

    def _receive(self, data: memoryview) -> None:
        if not self._partial:
            self._partial += data[self._open_messages(data) :]
            return
        self._partial += data
        with memoryview(self._partial) as view:
            opened = self._open_messages(view)
        del self._partial[:opened]

    def _open_messages(self, data: memoryview) -> int:
        """Hand over the complete messages in `data`; return how many bytes they take."""
        position = 0
        assert self._channel is not None
        while self._transport is not None and len(data) - position >= HEADER_BYTES:
            start = position + HEADER_BYTES
            end = start + message_bytes(data, position)
            if end + CODE_BYTES > len(data):
                break
            text = bytes(data[start:end])
            self._channel.open(text, data[end : end + CODE_BYTES])
            position = end + CODE_BYTES
            self.message_received(_decode(text))
        return position

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is None or not outgoing:
            return
        self._transport.write(b"".join(outgoing))
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.abort(ChannelError(f"it has not read {MAX_UNSENT_BYTES:,} bytes that were sent to it"))


def address_text(address: tuple[Any, ...] | None) -> str:
    """Return a socket's address as HOST:PORT."""
    if not address:
        return "an unknown address"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _read_buffer() -> memoryview:
    """Return the buffer that all connections of this thread read into.

    The event loop asks for a buffer, reads and hands the bytes over in one go, so connections never share it in time.
    """
    try:
        buffer: memoryview = _thread.buffer
    except AttributeError:
        buffer = _thread.buffer = memoryview(bytearray(_READ_BYTES))
    return buffer


def _detect_lost_hosts(sock: socket.socket) -> None:
    """Let the kernel end the connection when the other host is gone without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _SILENT_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _ACKNOWLEDGE_SECONDS * 1000)
