"""Serves the store through which the ranks of one generation find each other.

torch's own TCPStore takes orders from everybody who can reach its port. This server takes them only from ranks, which
know the key of their generation.
"""

import socket
from collections.abc import Callable, Mapping
from typing import Any

from onecurve.coordination.authenticated_server import AcceptedConnection, AuthenticatedServer
from onecurve.coordination.channel import ChannelError
from onecurve.coordination.request import message_field


class StoreServer(AuthenticatedServer):
    """Keys and values, and requests that wait for keys. Values are texts; the ranks encode their bytes."""

    def __init__(self, listener: socket.socket, key: bytes) -> None:
        super().__init__(listener, key)
        self.values: dict[str, str] = {}
        self._waiting: dict[str, dict[StoreRequest, None]] = {}
        """Key → the requests that wait for it."""

    def new_connection(self) -> "StoreConnection":
        return StoreConnection(self)

    def set(self, key: str, value: str) -> None:
        self.values[key] = value
        for request in self._waiting.pop(key, {}):
            request.found(key)

    def wait(self, request: "StoreRequest") -> None:
        """Let a request be answered when all of its keys are present."""
        for key in request.missing:
            self._waiting.setdefault(key, {})[request] = None

    def forget(self, request: "StoreRequest") -> None:
        """Drop a request whose rank is gone or no longer waits."""
        for key in request.missing:
            waiting = self._waiting.get(key, {})
            waiting.pop(request, None)
            if not waiting:
                self._waiting.pop(key, None)


class StoreRequest:
    """A request that waits until some keys are present."""

    def __init__(self, missing: set[str], answer: Callable[[], None]) -> None:
        self.missing = missing
        self._answer = answer

    def found(self, key: str) -> None:
        self.missing.discard(key)
        if not self.missing:
            self._answer()


class StoreConnection(AcceptedConnection):
    """The connection with one rank."""

    def __init__(self, server: StoreServer) -> None:
        super().__init__(server)
        self._server = server
        self._requests: dict[int, StoreRequest] = {}

    def closed(self, error: Exception | None) -> None:
        super().closed(error)
        for request in self._requests.values():
            self._server.forget(request)
        self._requests.clear()

    def message_received(self, message: Any) -> None:
        operation = _OPERATIONS.get(message_field(message, "op", str))
        if operation is None:
            raise ChannelError(f"unknown request {message['op']!r}")
        number = message_field(message, "id", int)
        if operation is StoreConnection.wait:
            self.wait(message)
        else:
            self.send({"id": number, "result": operation(self, message)})

    def set(self, message: Mapping[str, Any]) -> None:
        self._server.set(message_field(message, "key", str), message_field(message, "value", str))

    def get(self, message: Mapping[str, Any]) -> str | None:
        return self._server.values.get(message_field(message, "key", str))

    def add(self, message: Mapping[str, Any]) -> int:
        """Add to a decimal number, which is 0 if the key is absent."""
        key = message_field(message, "key", str)
        total = int(self._server.values.get(key, "0")) + message_field(message, "amount", int)
        self._server.set(key, str(total))
        return total

    def compare_set(self, message: Mapping[str, Any]) -> str | None:
        """Write the key if it has the expected value, or is absent and nothing is expected; return what it has then."""
        key, expected = message_field(message, "key", str), message_field(message, "expected", str)
        present = self._server.values.get(key)
        if present == expected or (present is None and not expected):
            self._server.set(key, message_field(message, "value", str))
        return self._server.values.get(key)

    def delete(self, message: Mapping[str, Any]) -> bool:
        return self._server.values.pop(message_field(message, "key", str), None) is not None

    def check(self, message: Mapping[str, Any]) -> bool:
        return all(key in self._server.values for key in message_field(message, "keys", list))

    def count(self, _: Mapping[str, Any]) -> int:
        return len(self._server.values)

    def wait(self, message: Mapping[str, Any]) -> None:
        """Answer when all keys are present."""
        number = message_field(message, "id", int)

        def answer() -> None:
            self._requests.pop(number, None)
            self.send({"id": number, "result": None})

        missing = {key for key in message_field(message, "keys", list) if key not in self._server.values}
        request = StoreRequest(missing, answer)
        if not missing:
            answer()
            return
        self._requests[number] = request
        self._server.wait(request)

    def forget(self, message: Mapping[str, Any]) -> None:
        """Answer a request no more, because its rank has waited long enough."""
        request = self._requests.pop(message_field(message, "request", int), None)
        if request is not None:
            self._server.forget(request)


_OPERATIONS: dict[str, Callable[[StoreConnection, Mapping[str, Any]], Any]] = {
    operation.__name__: operation
    for operation in (
        StoreConnection.set,
        StoreConnection.get,
        StoreConnection.add,
        StoreConnection.compare_set,
        StoreConnection.delete,
        StoreConnection.check,
        StoreConnection.count,
        StoreConnection.wait,
        StoreConnection.forget,
    )
}
