"""JSON messages between the processes of one host, over a pair of connected Unix sockets."""

import json
import socket
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any

_CHUNK = 65536
_DESCRIPTOR = struct.Struct("i")
_ANCILLARY_SIZE = socket.CMSG_LEN(_DESCRIPTOR.size)

Message = dict[str, Any]


class MessageSocket:
    """Sends and receives JSON objects, one per line. A message can carry an open file descriptor."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._received = b""
        self._messages: deque[Message] = deque()
        self._descriptors: deque[int] = deque()
        self.is_closed = False
        """True once one of the two sides has closed its end."""

    @staticmethod
    def pair() -> "tuple[MessageSocket, socket.socket]":
        """Return this process's end, and the other one, which a child process inherits."""
        mine, other = socket.socketpair()
        return MessageSocket(mine), other

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], descriptor: int | None = None) -> None:
        """Send a message; nothing happens if the other side is gone. `descriptor` is duplicated for the other process,
        which gets it with `take_descriptor`."""
        if self.is_closed:
            return
        line = json.dumps(message).encode() + b"\n"
        try:
            if descriptor is not None:
                sent = socket.send_fds(self._socket, [line], [descriptor])
                line = line[sent:]
            self._socket.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            self.is_closed = True

    def receive(self) -> Message | None:
        """Wait for the next message; return None if the other side is gone."""
        while not self._messages and not self.is_closed:
            self._read(0)
        return self._messages.popleft() if self._messages else None

    def receive_waiting(self) -> list[Message]:
        """Return the messages that have arrived, without waiting for more."""
        while not self.is_closed and self._read(socket.MSG_DONTWAIT):
            pass
        waiting = list(self._messages)
        self._messages.clear()
        return waiting

    def take_descriptor(self) -> int:
        """Return the descriptor that came with the last message that carried one."""
        return self._descriptors.popleft()

    def close(self) -> None:
        self._socket.close()
        self.is_closed = True

    def _read(self, flags: int) -> bool:
        """Read what has arrived; return False if that is nothing."""
        try:
            # Not socket.recv_fds, which ignores its flags in Python 3.11.
            received, ancillary, _, _ = self._socket.recvmsg(_CHUNK, _ANCILLARY_SIZE, flags)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            received, ancillary = b"", []
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(_DESCRIPTOR.unpack(content))
        self.is_closed = not received
        *lines, self._received = (self._received + received).split(b"\n")
        self._messages.extend(json.loads(line) for line in lines)
        return bool(received)
