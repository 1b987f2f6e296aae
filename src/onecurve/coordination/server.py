"""Serves the state of the in-memory backend to other hosts, on one address."""

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onecurve.coordination.authenticated_server import AcceptedConnection, AuthenticatedServer
from onecurve.coordination.channel import ChannelError
from onecurve.coordination.clock import ServingClock
from onecurve.coordination.entry import Change, check_key
from onecurve.coordination.errors import LeaseLostError
from onecurve.coordination.request import message_field
from onecurve.coordination.state import Deliver, KeyValueState

_LISTING_BYTES = 2**18
"""About the size of one message of a long listing."""


class Server(AuthenticatedServer):
    """A state machine and the listener through which other hosts reach it."""

    def __init__(self, listener: socket.socket, job_key: bytes) -> None:
        super().__init__(listener, job_key)
        self.state = KeyValueState()
        self.clock = ServingClock()

    def new_connection(self) -> "ServerConnection":
        return ServerConnection(self)

    def tick(self) -> None:
        self.state.expire(self.clock.tick())
        super().tick()


class ServerConnection(AcceptedConnection):
    """The server's side of a connection: answers a client's requests."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._server = server
        self._watches: dict[int, tuple[str, Deliver]] = {}

    def closed(self, error: Exception | None) -> None:
        super().closed(error)
        for prefix, deliver in self._watches.values():
            self._server.state.unwatch(prefix, deliver)
        self._watches.clear()

    def message_received(self, message: Any) -> None:
        operation = _OPERATIONS.get(message_field(message, "op", str))
        if operation is None:
            raise ChannelError(f"unknown request {message['op']!r}: use the same version of onecurve on every host")
        try:
            reply = {"id": message.get("id"), "result": operation(self, message)}
        except LeaseLostError as error:
            reply = {"id": message.get("id"), "lease_lost": str(error)}
        if reply["id"] is not None:
            self.send(reply)

    def grant(self, message: Mapping[str, Any]) -> None:
        seconds = float(message_field(message, "seconds", float))
        self._server.state.grant(message_field(message, "lease", int), seconds, self._server.clock.now())

    def keep_alive(self, message: Mapping[str, Any]) -> bool:
        return self._server.state.keep_alive(message_field(message, "lease", int), self._server.clock.now())

    def revoke(self, message: Mapping[str, Any]) -> None:
        self._server.state.revoke(message_field(message, "lease", int))

    def create(self, message: Mapping[str, Any]) -> bool:
        return self._server.state.create(
            _key(message), message_field(message, "value", str), *_lease_and_token(message)
        )

    def put(self, message: Mapping[str, Any]) -> None:
        self._server.state.put(_key(message), message_field(message, "value", str), *_lease_and_token(message))

    def get(self, message: Mapping[str, Any]) -> tuple[str, int] | None:
        return self._server.state.get(_key(message))

    def compare_and_set(self, message: Mapping[str, Any]) -> bool:
        version, value = message_field(message, "version", int), message_field(message, "value", str)
        return self._server.state.compare_and_set(_key(message), version, value, message_field(message, "token", str))

    def delete(self, message: Mapping[str, Any]) -> bool:
        return self._server.state.delete(_key(message), message_field(message, "version", int))

    def watch(self, message: Mapping[str, Any]) -> None:
        number, prefix = message_field(message, "watch", int), message_field(message, "prefix", str)
        if number in self._watches:
            raise ChannelError(f"watch {number} exists already")
        self._send_listing(number, prefix)

        def deliver(changes: Sequence[Change]) -> None:
            self.send({"watch": number, "changes": changes})

        self._watches[number] = prefix, deliver
        self._server.state.watch(prefix, deliver)

    def unwatch(self, message: Mapping[str, Any]) -> None:
        watched = self._watches.pop(message_field(message, "watch", int), None)
        if watched is not None:
            self._server.state.unwatch(*watched)

    def _send_listing(self, number: int, prefix: str) -> None:
        """Send the present keys in several messages, the last of which has the revision."""
        piece: list[Change] = []
        size = 0
        for change in self._server.state.listing(prefix):
            piece.append(change)
            size += len(change.value or "")
            if size >= _LISTING_BYTES:
                self.send({"watch": number, "listing": piece})
                piece, size = [], 0
        self.send({"watch": number, "listing": piece, "revision": self._server.state.revision})


_OPERATIONS: dict[str, Callable[[ServerConnection, Mapping[str, Any]], Any]] = {
    operation.__name__: operation
    for operation in (
        ServerConnection.grant,
        ServerConnection.keep_alive,
        ServerConnection.revoke,
        ServerConnection.create,
        ServerConnection.put,
        ServerConnection.get,
        ServerConnection.compare_and_set,
        ServerConnection.delete,
        ServerConnection.watch,
        ServerConnection.unwatch,
    )
}


def _key(message: Mapping[str, Any]) -> str:
    key = message_field(message, "key", str)
    check_key(key)
    return key


def _lease_and_token(message: Mapping[str, Any]) -> tuple[int | None, str]:
    lease = message.get("lease")
    return None if lease is None else message_field(message, "lease", int), message_field(message, "token", str)
