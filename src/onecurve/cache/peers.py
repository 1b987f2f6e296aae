"""The hosts of a job, which give each other their cached files, so that each file is read from the store once.

For each file, the hosts form a binary tree, rotated by the file's key: the first one reads the store, and every other
one asks the host above it. So each host sends a file to two others at most, whatever the number of hosts.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import msgspec

from onecurve.cache.remote_file import RemoteFile
from onecurve.coordination.errors import CoordinationError
from onecurve.coordination.sealed_socket import SealedSocket

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 20.0


@dataclass(frozen=True)
class Peers:
    """The hosts of a job, and which one this is."""

    addresses: Sequence[tuple[str, int]]
    own: int
    key: bytes
    """Who knows it is a host of the job."""

    def above(self, file_key: str) -> list[int]:
        """The hosts above this one in the tree of a file, nearest first; none for the host that reads the store."""
        count = len(self.addresses)
        shift = int(file_key[:15], 16) % count
        place = (self.own + shift) % count
        found = []
        while place:
            place = (place - 1) // 2
            found.append((place - shift) % count)
        return found


class PeerAnswer(msgspec.Struct, frozen=True):
    """What a host says about a part of a file."""

    size: int
    """Bytes that follow. 0: it will have them later."""
    is_declined: bool = False
    """It has no room for the file."""


class PeerRequest(msgspec.Struct, frozen=True):
    """Asks for a part of a file."""

    file: RemoteFile
    begin: int
    size: int


class PeerConnection:
    """Reads one file from another host. Errors of the connection are OSErrors."""

    def __init__(self, address: tuple[str, int], key: bytes) -> None:
        try:
            self._socket = SealedSocket.connect(*address, key, _CONNECT_SECONDS)
            self._socket.limit(_ANSWER_SECONDS)
        except CoordinationError as error:
            raise ConnectionError(str(error)) from None

    def read(self, file: RemoteFile, begin: int, size: int) -> bytes | None:
        """Return some bytes from `begin` on, at most `size`, none if the host will have them later; None if it declines
        the file."""
        try:
            self._socket.send(msgspec.json.encode(PeerRequest(file, begin, size)))
            answer = msgspec.json.decode(self._socket.receive(), type=PeerAnswer)
            if answer.is_declined or not 0 <= answer.size <= size:
                return None
            data = bytearray(answer.size)
            self._socket.receive_into(memoryview(data))
        except (CoordinationError, msgspec.DecodeError) as error:
            raise ConnectionError(str(error)) from None
        return bytes(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        with suppress(OSError):
            self._socket.close()
