"""Blocking calls to etcd v3 through its JSON gateway, with failover between the members."""

import json
import logging
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any

from onecurve.coordination.errors import CoordinationError, UnreachableError
from onecurve.coordination.etcd_address import EtcdAddress

_ATTEMPT_SECONDS, _LONGEST_ATTEMPT_SECONDS = 0.3, 3.0
"""A request that is under way when etcd's leader dies hangs for about 7 s, so it is soon sent to another member.

If all members are slow, the attempts get longer.
"""
_PAUSE_SECONDS = 0.05
_STREAM_START_SECONDS = 3.0
_STREAM_SILENT_SECONDS = 30.0
"""A stream without events for this time is started again, in case its member hangs."""

_AUTHENTICATE = "/v3/auth/authenticate"

NOT_FOUND, FAILED_PRECONDITION = 5, 9
_UNAUTHENTICATED = 16
_RETRIED = {1, 4, 8, 14}
"""gRPC codes: cancelled (the member ends), deadline exceeded, too many requests, unavailable (no leader, leader
changed, request timed out)."""


_log = logging.getLogger(__name__)


class EtcdError(CoordinationError):
    """etcd refuses a request."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class EtcdRetryError(Exception):
    """An attempt that failed; another one may succeed."""


class EtcdStream:
    """A response that does not end: one JSON object per line."""

    def __init__(
        self, connection: HTTPConnection, response: HTTPResponse, sock: socket.socket, count: Callable[[int], None]
    ) -> None:
        self._connection, self._response, self._sock, self._count = connection, response, sock, count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            while line := self._response.readline():
                self._count(len(line))
                yield json.loads(line)
        except (OSError, HTTPException, ValueError) as error:
            raise EtcdRetryError(str(error) or type(error).__name__) from None

    def close(self) -> None:
        self._connection.close()

    def interrupt(self) -> None:
        """End the iteration in another thread."""
        with suppress(OSError):  # it has ended already
            self._sock.shutdown(socket.SHUT_RDWR)


def _notice_silent_loss(sock: socket.socket) -> None:
    """Have the kernel ask every second whether the other host is there: one that was cut off says nothing."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 2)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


class EtcdGateway:
    """The members of an etcd cluster. Methods block, and may be called from several threads.

    A request whose outcome is unknown is sent again, to the next member, until `timeout` seconds have passed. The
    caller must only send requests that may be carried out twice or late.
    """

    def __init__(self, address: EtcdAddress, timeout: float) -> None:
        if address.user is not None and address.tls is None:
            _log.warning("%s: the password is sent without encryption; use etcds:// for TLS", address)
        self.address, self._timeout = address, timeout
        self._idle: dict[tuple[str, int], list[HTTPConnection]] = defaultdict(list)
        self._current = 0
        """Index of the member that answered last."""
        self.received_bytes = 0
        self._counting = threading.Lock()
        self._token: str | None = None
        self._closed = threading.Event()

    def call(self, path: str, body: Mapping[str, Any], timeout: float | None = None) -> dict[str, Any]:
        """Send a request until a member answers it; raise EtcdError if it is refused."""
        limit = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + limit
        attempt, failed = _ATTEMPT_SECONDS, 0
        while True:
            current = self._current
            try:
                return self._call_once(current, path, body, max(0.01, min(attempt, deadline - time.monotonic())))
            except ssl.SSLCertVerificationError as error:
                raise self._untrusted(error) from None
            except (OSError, HTTPException, ValueError, EtcdRetryError) as error:
                reason = error
            self._try_next_member(current)
            failed += 1
            if failed % len(self.address.endpoints) == 0:
                attempt = min(1.5 * attempt, _LONGEST_ATTEMPT_SECONDS)
                self._closed.wait(_PAUSE_SECONDS)
            if self._closed.is_set() or time.monotonic() >= deadline:
                raise self._unreachable(limit, reason)

    def stream(self, path: str, body: Mapping[str, Any]) -> EtcdStream:
        """Start a request that is answered line by line. One attempt: after EtcdRetryError the caller tries again."""
        current = self._current
        connection = self._new_connection(self._endpoint(current), _STREAM_START_SECONDS)
        try:
            response = self._post(connection, path, body)
            sock = connection.sock
            if response.status != 200:
                self._raise_refusal(path, response)
            _notice_silent_loss(sock)
            sock.settimeout(_STREAM_SILENT_SECONDS)
            return EtcdStream(connection, response, sock, self._count_bytes)
        except ssl.SSLCertVerificationError as error:
            raise self._untrusted(error) from None
        except (OSError, HTTPException, ValueError, EtcdRetryError) as error:
            connection.close()
            self._try_next_member(current)
            raise EtcdRetryError(str(error) or type(error).__name__) from None

    def close(self) -> None:
        """Let all calls that are under way end with their present attempt."""
        self._closed.set()
        for connections in self._idle.values():
            while connections:
                connections.pop().close()

    def _call_once(self, current: int, path: str, body: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        endpoint = self._endpoint(current)
        connection = self._idle[endpoint].pop() if self._idle[endpoint] else self._new_connection(endpoint, seconds)
        connection.timeout = seconds
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        try:
            response = self._post(connection, path, body)
            if response.status != 200:
                self._raise_refusal(path, response)
            text = response.read()
            answer: dict[str, Any] = json.loads(text)
        except BaseException:
            connection.close()
            raise
        self._idle[endpoint].append(connection)
        self._count_bytes(len(text))
        return answer

    def _post(self, connection: HTTPConnection, path: str, body: Mapping[str, Any]) -> HTTPResponse:
        # A watch must not stay with a member that has lost the others: this header makes such a member end it.
        headers = {"Content-Type": "application/json", "Grpc-Metadata-hasleader": "true"}
        if self.address.user is not None and path != _AUTHENTICATE:
            headers["Authorization"] = self._authenticate(connection)
        connection.request("POST", path, json.dumps(body), headers)
        return connection.getresponse()

    def _authenticate(self, connection: HTTPConnection) -> str:
        token = self._token
        if token is None:
            credentials = {"name": self.address.user, "password": self.address.password}
            response = self._post(connection, _AUTHENTICATE, credentials)
            if response.status != 200:
                self._raise_refusal(_AUTHENTICATE, response)
            token = self._token = str(json.loads(response.read())["token"])
        return token

    def _raise_refusal(self, path: str, response: HTTPResponse) -> None:
        """Raise the error of a response: whether another attempt may help depends on its gRPC code."""
        text = response.read().decode(errors="replace")
        try:
            refusal = json.loads(text)
            code, message = int(refusal["code"]), str(refusal.get("message") or refusal.get("error"))
        except (ValueError, KeyError, TypeError):
            raise EtcdRetryError(f"HTTP status {response.status}: {text[:200]}") from None
        if code == _UNAUTHENTICATED:
            self._token = None
        if (code in _RETRIED and "space exceeded" not in message) or (
            code == _UNAUTHENTICATED and path != _AUTHENTICATE
        ):
            raise EtcdRetryError(message)
        hint = " (set ETCDCTL_USER=name:password in the environment)" if "user name is empty" in message else ""
        raise EtcdError(f"{self.address} refuses {path}: {message}{hint}", code)

    def _count_bytes(self, count: int) -> None:
        with self._counting:
            self.received_bytes += count

    def _endpoint(self, current: int) -> tuple[str, int]:
        return self.address.endpoints[current % len(self.address.endpoints)]

    def _try_next_member(self, failed: int) -> None:
        if self._current == failed:  # unless another thread has moved on already
            self._current = failed + 1

    def _new_connection(self, endpoint: tuple[str, int], seconds: float) -> HTTPConnection:
        if self.address.tls is not None:
            return HTTPSConnection(*endpoint, timeout=seconds, context=self.address.tls)
        return HTTPConnection(*endpoint, timeout=seconds)

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> CoordinationError:
        return CoordinationError(
            f"{self.address}: the certificate is not trusted ({error.verify_message}): set ETCDCTL_CACERT to "
            "the file of the authority that signed it"
        )

    def _unreachable(self, limit: float, reason: Exception) -> UnreachableError:
        return UnreachableError(
            f"{self.address} did not answer host {socket.gethostname()!r} within {limit:g} s "
            f"({str(reason) or type(reason).__name__}): check that most of etcd's members run and can be reached"
        )
