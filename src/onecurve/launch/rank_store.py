"""A rank's client of the store through which the ranks of its generation find each other."""

import json
import secrets
import socket
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from onecurve.coordination.channel import (
    CHALLENGE_BYTES,
    CODE_BYTES,
    HEADER_BYTES,
    SESSION_BYTES,
    Channel,
    ClientHandshake,
    message_bytes,
)
from onecurve.describe.assignment import Assignment

_CONNECT_SECONDS = 60.0
_ANSWER_SECONDS = 60.0
"""A request that does not wait for a key is answered within this time."""
_WAIT = timedelta(minutes=30)
"""How long to wait for a key if torch does not say it, as for a collective."""


class RankStore(Store):
    """torch's interface of a store, on an authenticated connection.

    It connects when it is first used, because a thread receives the answers: the processes of the data loader must have
    been forked before. Several threads may use it; those of gloo do when two ranks first exchange data.
    """

    def __init__(self, host: str, port: int, key: bytes) -> None:
        super().__init__()
        self._address, self._key = (host, port), key
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._answers: dict[int, _Answer] = {}
        self._connection: tuple[socket.socket, Channel] | None = None
        self._failure = ""

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key=key, value=_text(value))

    def get(self, key: str) -> bytes:
        """Wait until the key is present, and return its value."""
        value = self._ask("get", key=key)
        if value is None:
            self.wait([key])
            value = self._ask("get", key=key)
        return _bytes(value)

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", key=key, amount=amount))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        value = self._ask("compare_set", key=key, expected=_text(expected) if expected else "", value=_text(desired))
        return _bytes(value) if value is not None else b""

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", key=key))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", keys=list(keys)))

    def num_keys(self) -> int:
        return int(self._ask("count"))

    def wait(self, keys: Sequence[str], timeout: timedelta = _WAIT) -> None:
        self._ask("wait", timeout.total_seconds(), keys=list(keys))

    def clone(self) -> "RankStore":
        return self

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815  torch calls them so from C++

    def close(self) -> None:
        """Drop the connection. Threads that still wait for an answer get an error."""
        with self._lock:
            connected, self._connection = self._connection, None
            self._fail("it was closed")
            if connected is not None:
                with suppress(OSError):
                    connected[0].shutdown(socket.SHUT_RDWR)  # wakes the thread that receives
                connected[0].close()

    def _ask(self, operation: str, seconds: float = _ANSWER_SECONDS, **fields: Any) -> Any:
        number, answer = next(self._numbers), _Answer()
        with self._lock:
            if self._failure:
                raise dist.DistNetworkError(self._failure)
            if self._connection is None:
                self._connection = self._connected()
            self._answers[number] = answer
            self._send({"id": number, "op": operation, **fields})
        if not answer.arrived.wait(seconds):
            with self._lock:
                self._answers.pop(number, None)
                if self._connection is not None:
                    self._send({"id": next(self._numbers), "op": "forget", "request": number})
            subject = fields.get("key") or fields.get("keys") or operation
            raise dist.DistStoreError(f"Timed out waiting for clients: {subject} was not there after {seconds:g} s")
        if answer.failure:
            raise dist.DistNetworkError(answer.failure)
        return answer.result

    def _connected(self) -> tuple[socket.socket, Channel]:
        try:
            return self._connect()
        except OSError as error:
            self._fail(str(error))
            raise dist.DistNetworkError(self._failure) from None

    def _connect(self) -> tuple[socket.socket, Channel]:
        connected = socket.create_connection(self._address, _CONNECT_SECONDS)
        handshake = ClientHandshake(self._key, secrets.token_bytes(SESSION_BYTES))
        connected.sendall(handshake.hello())
        proof, channel = handshake.prove(_receive(connected, CHALLENGE_BYTES))
        connected.sendall(proof)
        connected.settimeout(None)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        receiver = threading.Thread(
            target=self._take_answers, args=(connected, channel), name="onecurve store", daemon=True
        )
        receiver.start()
        return connected, channel

    def _send(self, message: dict[str, Any]) -> None:
        assert self._connection is not None
        connected, channel = self._connection
        try:
            connected.sendall(channel.seal(json.dumps(message).encode()))
        except OSError as error:
            raise dist.DistNetworkError(f"sendBytes failed: {error}") from None

    def _take_answers(self, connected: socket.socket, channel: Channel) -> None:
        try:
            while True:
                length = message_bytes(memoryview(_receive(connected, HEADER_BYTES)), 0)
                text = channel.open(_receive(connected, length), _receive(connected, CODE_BYTES))
                message = json.loads(text)
                answer = self._answers.pop(message["id"], None)
                if answer is not None:
                    answer.result = message["result"]
                    answer.arrived.set()
        except Exception as error:  # the thread must not end in silence: others wait for their answers
            with self._lock:
                self._fail(str(error))

    def _fail(self, reason: str) -> None:
        host, port = self._address
        self._failure = self._failure or f"recvBytes failed: the store at {host}:{port} does not answer ({reason})"
        for number in [*self._answers]:
            answer = self._answers.pop(number, None)
            if answer is not None:
                answer.failure = self._failure
                answer.arrived.set()


@contextmanager
def store_of(assignment: Assignment) -> Iterator[RankStore | None]:
    """Yield the store of a rank's generation; None if the rank is alone.

    torch keeps the part of the store that is in C++, not the Python object: whoever uses it must stay inside.
    """
    if assignment.size == 1:
        yield None
        return
    address = assignment.store
    store = RankStore(address.host, address.port, bytes.fromhex(address.key))
    try:
        yield store
    finally:
        store.close()


class _Answer:
    """The answer to a request, once it has arrived."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.result: Any = None
        self.failure = ""


def _receive(connected: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connected.recv(size - len(received))
        if not piece:
            raise ConnectionError("the connection was closed")
        received += piece
    return bytes(received)


def _text(value: str | bytes) -> str:
    """A value as the server keeps it. Decimal numbers stay as they are, because the server adds to them."""
    content = value.encode() if isinstance(value, str) else bytes(value)
    return content.decode() if content.isdigit() else "=" + b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text[1:]) if text.startswith("=") else text.encode()
