"""Data of any size on an authenticated connection."""

import secrets
import socket
import threading

import pytest

from onecurve.coordination.channel import HEADER_BYTES, Channel, ChannelError
from onecurve.coordination.sealed_socket import SealedSocket

KEYS = b"a" * 32, b"b" * 32


def pair() -> tuple[SealedSocket, SealedSocket, socket.socket]:
    """Both sides of a connection, and the plain socket of the first."""
    one, other = socket.socketpair()
    return SealedSocket(one, Channel(*KEYS)), SealedSocket(other, Channel(*KEYS[::-1])), one


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1, 3 * 2**20 + 7])
def test_data_arrive_as_they_were_sent(size: int) -> None:
    sender, receiver, _ = pair()
    data = secrets.token_bytes(size)
    target = bytearray(size)
    thread = threading.Thread(target=sender.send_all, args=(memoryview(data),))
    thread.start()
    receiver.receive_into(memoryview(target))
    thread.join()
    assert target == data
    sender.send(b"and then")
    assert receiver.receive() == b"and then"


def test_altered_data_are_refused() -> None:
    _, receiver, plain = pair()
    header, code = Channel(*KEYS).seal_around(b"0123")
    plain.sendall(header + b"0124" + code)
    with pytest.raises(ChannelError, match="altered"):
        receiver.receive_into(memoryview(bytearray(4)))


def test_data_of_another_size_are_refused() -> None:
    sender, receiver, _ = pair()
    sender.send_all(memoryview(b"0123"))
    with pytest.raises(ConnectionError, match="4 bytes arrive instead of 5"):
        receiver.receive_into(memoryview(bytearray(5)))


def test_a_connection_that_ends_early_is_an_error() -> None:
    sender, receiver, plain = pair()
    plain.sendall(bytes(HEADER_BYTES - 1))
    sender.close()
    with pytest.raises(ConnectionError, match="closed"):
        receiver.receive_into(memoryview(bytearray(4)))
