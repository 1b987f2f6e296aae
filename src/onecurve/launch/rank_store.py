"""A rank's client of the store through which the ranks of its generation find each other."""

import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from onecurve.coordination.sealed_socket import SealedSocket
from onecurve.describe.assignment import Assignment

_CONNECT_SECONDS = 60.0
_ANSWER_SECONDS = 60.0
"""A request that does not wait for a key is answered within this time."""
_MAX_NOTED_BYTES = 2**16
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
        self._connection: SealedSocket | None = None
        self._failure = ""
        self.exchanged: list[bytes] = []
        """Values that this rank has written or read, such as the addresses at which gloo listens."""

    def set(self, key: str, value: str | bytes) -> None:
        self._note(value.encode() if isinstance(value, str) else bytes(value))
        self._ask("set", key=key, value=_text(value))

    def get(self, key: str) -> bytes:
        """Wait until the key is present, and return its value."""
        value = self._ask("get", key=key)
        if value is None:
            self.wait([key])
            value = self._ask("get", key=key)
        content = _bytes(value)
        self._note(content)
        return content

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
                    connected.shut_down()
                connected.close()

    def _note(self, value: bytes) -> None:
        if len(value) <= _MAX_NOTED_BYTES:
            self.exchanged.append(value)

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

    def _connected(self) -> SealedSocket:
        try:
            return self._connect()
        except OSError as error:
            self._fail(str(error))
            raise dist.DistNetworkError(self._failure) from None

    def _connect(self) -> SealedSocket:
        connected = SealedSocket.connect(*self._address, self._key, _CONNECT_SECONDS)
        threading.Thread(target=self._take_answers, args=(connected,), name="onecurve store", daemon=True).start()
        return connected

    def _send(self, message: dict[str, Any]) -> None:
        assert self._connection is not None
        try:
            self._connection.send(json.dumps(message).encode())
        except OSError as error:
            raise dist.DistNetworkError(f"sendBytes failed: {error}") from None

    def _take_answers(self, connected: SealedSocket) -> None:
        try:
            while True:
                message = json.loads(connected.receive())
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
    if assignment.generation.size == 1:
        yield None
        return
    address = assignment.generation.store
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


def _text(value: str | bytes) -> str:
    """A value as the server keeps it. Decimal numbers stay as they are, because the server adds to them."""
    content = value.encode() if isinstance(value, str) else bytes(value)
    return content.decode() if content.isdigit() else "=" + b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text[1:]) if text.startswith("=") else text.encode()
