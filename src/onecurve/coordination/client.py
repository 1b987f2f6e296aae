"""The client of the in-memory backend on other hosts."""

import asyncio
import random
import secrets
import socket
from collections.abc import Mapping
from itertools import count
from typing import Any

from onecurve.coordination.channel import CHALLENGE_BYTES, SESSION_BYTES, ClientHandshake
from onecurve.coordination.connection import Connection
from onecurve.coordination.coordination import TIMEOUT_SECONDS
from onecurve.coordination.entry import Change, Entry, check_entry, check_key, check_prefix
from onecurve.coordination.errors import CoordinationError, JobKeyError, LeaseLostError, UnreachableError
from onecurve.coordination.lease import Lease, lease_number
from onecurve.coordination.watch import Watch

_ATTEMPT_SECONDS = 5.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 1.0


class RemoteCoordination:
    """Coordination through the server of another host.

    If the connection is lost, it is made again, requests without an answer are sent again and watches report what has
    changed. If that takes longer than `timeout` seconds, every request and watch raises UnreachableError.
    """

    def __init__(self, host: str, port: int, job_key: bytes, timeout: float = TIMEOUT_SECONDS) -> None:
        self._host, self._port, self._job_key, self._timeout = host, port, job_key, timeout
        self._session = secrets.token_bytes(SESSION_BYTES)
        self._numbers = count(1)
        self._pending: dict[int, tuple[Mapping[str, Any], asyncio.Future[Any]]] = {}
        self._watches: dict[int, Watch] = {}
        self._listings: dict[int, list[Change]] = {}
        self._leases: set[Lease] = set()
        self._connection: ClientConnection | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._received_bytes = 0

    @classmethod
    async def connect(
        cls, host: str, port: int, job_key: bytes, timeout: float = TIMEOUT_SECONDS, *, patience: float | None = None
    ) -> "RemoteCoordination":
        """Connect to a server. `patience`: seconds that it may take to appear; None: `timeout`.

        Raises JobKeyError if it does not know the job's key, and UnreachableError if it does not answer in time.
        """
        client = cls(host, port, job_key, timeout)
        await client._connect(timeout if patience is None else patience)
        return client

    @property
    def received_bytes(self) -> int:
        """Bytes received from the server, over all connections."""
        return self._received_bytes + (self._connection.received_bytes if self._connection is not None else 0)

    async def lease(self, seconds: float) -> Lease:
        number = secrets.randbits(62)

        async def renew() -> bool:
            return bool(await self._request("keep_alive", lease=number, is_limited=False))  # the lease limits it

        async def revoke() -> None:
            await self._request("revoke", lease=number)

        granted_at = asyncio.get_running_loop().time()
        await self._request("grant", lease=number, seconds=float(seconds))
        lease = Lease(number, seconds, granted_at, renew, revoke)
        self._leases.add(lease)
        return lease

    async def create(self, key: str, value: str, lease: Lease | None = None) -> bool:
        check_entry(key, value)
        return bool(await self._write("create", key=key, value=value, lease=lease_number(lease)))

    async def put(self, key: str, value: str, lease: Lease | None = None) -> None:
        check_entry(key, value)
        await self._write("put", key=key, value=value, lease=lease_number(lease))

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        result = await self._request("get", key=key)
        return Entry(*result) if result is not None else None

    async def compare_and_set(self, key: str, version: int, value: str) -> bool:
        check_entry(key, value)
        return bool(await self._write("compare_and_set", key=key, version=version, value=value))

    async def delete(self, key: str) -> bool:
        # Deleting by version: a request that arrives twice must not delete what another host has created between.
        existed = False
        while (entry := await self.get(key)) is not None:
            existed = True
            if await self._request("delete", key=key, version=entry.version):
                break
        return existed

    async def watch(self, prefix: str) -> Watch:
        check_prefix(prefix)
        if self._failure is not None:
            raise self._failure
        number = next(self._numbers)
        watch = Watch(prefix, lambda: self._unwatch(number))
        self._watches[number] = watch
        self._send_watch(number)
        return watch

    async def close(self) -> None:
        for watch in [*self._watches.values()]:
            watch.close()
        for lease in self._leases:
            await lease.abandon()
        self._fail(UnreachableError(f"the connection with {self._host}:{self._port} was closed"))
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.wait([self._reconnecting])
        connection = self._connection
        if connection is not None:
            await asyncio.sleep(0)  # what was sent last is written in the next turn of the event loop
            connection.abort()
            await asyncio.sleep(0)

    def message_received(self, message: Mapping[str, Any]) -> None:
        """Take a message of the server."""
        if "watch" in message:
            self._watch_received(message)
            return
        _, future = self._pending.get(message["id"], (None, None))
        if future is None or future.done():
            return  # the request was given up
        if "lease_lost" in message:
            future.set_exception(LeaseLostError(message["lease_lost"]))
        else:
            future.set_result(message["result"])

    def connection_lost(self, connection: "ClientConnection") -> None:
        """Connect again, unless the client was closed."""
        if connection is not self._connection:
            return
        self._received_bytes += connection.received_bytes
        self._connection = None
        if self._failure is None:
            self._reconnecting = asyncio.create_task(self._reconnect())

    async def _write(self, operation: str, **fields: Any) -> Any:
        """Send a write with a token by which the server recognizes it if it is sent again."""
        return await self._request(operation, token=secrets.token_hex(8), **fields)

    async def _request(self, operation: str, is_limited: bool = True, **fields: Any) -> Any:
        if self._failure is not None:
            raise self._failure
        number = next(self._numbers)
        message = {"id": number, "op": operation, **fields}
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = message, future
        if self._connection is not None:
            self._connection.send(message)
        try:
            if not is_limited:
                return await future
            async with asyncio.timeout(self._timeout):
                return await future
        except TimeoutError:
            raise self._unreachable(f"it did not answer the request {operation!r}", self._timeout) from None
        finally:
            del self._pending[number]

    async def _connect(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                connection = await self._attempt(deadline)
                break
            except (OSError, TimeoutError) as error:
                if loop.time() + pause > deadline:
                    raise self._unreachable(str(error) or "it did not answer", timeout) from None
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # thousands of hosts must not return at once
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._connection = connection
        for number in self._watches:
            self._send_watch(number)
        for message, _ in self._pending.values():
            connection.send(message)

    async def _attempt(self, deadline: float) -> "ClientConnection":
        loop = asyncio.get_running_loop()
        connection = ClientConnection(self, ClientHandshake(self._job_key, self._session))
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + _ATTEMPT_SECONDS)):
                await loop.create_connection(lambda: connection, self._host, self._port)
                await connection.is_open
            if not connection.is_connected:  # the server may have ended it meanwhile
                raise ConnectionError("it closed the connection after the handshake")
        except BaseException:
            connection.is_open.cancel()
            connection.abort()
            raise
        return connection

    async def _reconnect(self) -> None:
        try:
            await self._connect(self._timeout)
        except CoordinationError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        for _, future in self._pending.values():
            if not future.done():
                future.set_exception(error)
        for watch in self._watches.values():
            watch.fail(error)

    def _unreachable(self, reason: str, seconds: float) -> UnreachableError:
        return UnreachableError(
            f"{self._host}:{self._port} could not be reached from host {socket.gethostname()!r} "
            f"for {seconds:g} s ({reason}): check that onecurve still runs there and that no firewall "
            "blocks this port"
        )

    def _send_watch(self, number: int) -> None:
        self._listings[number] = []
        if self._connection is not None:
            self._connection.send({"op": "watch", "watch": number, "prefix": self._watches[number].prefix})

    def _unwatch(self, number: int) -> None:
        del self._watches[number], self._listings[number]
        if self._connection is not None:
            self._connection.send({"op": "unwatch", "watch": number})

    def _watch_received(self, message: Mapping[str, Any]) -> None:
        number = message["watch"]
        watch = self._watches.get(number)
        if watch is None:
            return  # closed
        if "changes" in message:
            watch.add_changes([Change(*change) for change in message["changes"]])
            return
        self._listings[number] += [Change(*change) for change in message["listing"]]
        if "revision" in message:
            watch.add_listing(self._listings[number], message["revision"])
            self._listings[number] = []


class ClientConnection(Connection):
    """The client's side of a connection: verifies the server, then hands its messages to the client."""

    def __init__(self, client: RemoteCoordination, handshake: ClientHandshake) -> None:
        super().__init__()
        self.is_open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._client, self._steps = client, handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._expect(CHALLENGE_BYTES)
        self._write_handshake(self._steps.hello())

    def handshake_received(self, data: bytes) -> None:
        try:
            proof, channel = self._steps.prove(data)
        except JobKeyError as error:
            if not self.is_open.done():
                self.is_open.set_exception(JobKeyError(f"{self.addresses} does not know this job's key: {error}"))
            self.abort()
            return
        self._open(channel)
        if not self.is_open.done():
            self.is_open.set_result(None)
        self._write_handshake(proof)  # after whoever waits was woken, so that the first requests go with it

    def message_received(self, message: Any) -> None:
        self._client.message_received(message)

    def closed(self, error: Exception | None) -> None:
        if not self.is_open.done():
            reason = "it closed the connection before the handshake was finished"
            self.is_open.set_exception(ConnectionError(f"{reason} ({error})" if error is not None else reason))
        self._client.connection_lost(self)
