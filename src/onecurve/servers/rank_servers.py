"""The row servers of a job, as a rank reaches them."""

import asyncio
import socket
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.errors import UnreachableError
from onecurve.describe.errors import OnecurveError
from onecurve.describe.row_servers import RowServerAddress
from onecurve.describe.slots import SLOTS
from onecurve.params.background import wait_for
from onecurve.params.row_client import RowsLostError
from onecurve.params.view import ServerAddress, View
from onecurve.params.view_changes import first_view
from onecurve.servers.encryption import client_context
from onecurve.servers.greeting import Greeting, connect_rank
from onecurve.servers.service import connect_service
from onecurve.servers.settings import RowSettings
from onecurve.servers.view_follower import SERVERS_PREFIX, VIEW_KEY, decoded_server, decoded_view, encoded

CREW_KEY = "rows/crew"
_ALONE_SECONDS = 8.0
"""If no server lives for so long, none will come back with its rows."""
_START_SECONDS = 120.0
"""Servers start within this time. The first one on a machine compiles kernels."""
_RETRY_SECONDS = 0.1

Result = TypeVar("Result")


class RankServers:
    """Follows the view of the servers in a thread."""

    def __init__(self, address: RowServerAddress, settings: RowSettings, count: int = 1, copies: int = 2) -> None:
        """`settings`: what servers must know of the job. `count`: so many servers are awaited before the rows begin
        anew. `copies`: of each row."""
        self._address, self._key = address, bytes.fromhex(address.key)
        self._tls = client_context(address.tls)
        self._settings, self._count, self._copies = settings, count, copies
        self._view: View | None = None
        self._living: set[str] = set()
        self._alone_since: float | None = None
        """Since when no server lives."""
        self._reported: set[str] = set()
        """Servers that this rank has found dead."""
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._coordination: Coordination | None = None
        self._loop = asyncio.new_event_loop()
        self._task = self._loop.create_task(self._follow())
        self._thread = threading.Thread(target=self._run, name="onecurve row servers", daemon=True)
        self._thread.start()

    def current(self) -> View:
        """The newest view. Waits for the first one."""
        with self._changed:
            self._changed.wait_for(lambda: self._view is not None or self._error is not None)
            self._raise_error()
            assert self._view is not None
            since = self._alone_since
            if since is not None and time.monotonic() - since > _ALONE_SECONDS:
                raise RowsLostError([range(SLOTS)], None)
            return self._view

    def begin_anew(self) -> int:
        """Have all servers forget their rows, and divide the slots among those that live; return the epoch in which
        they begin. One rank calls it."""
        return self._do(self._begin_anew())

    def wait_for(self, epoch: int) -> None:
        """Wait for the view of this epoch, or a later one."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or (self._view is not None and self._view.epoch >= epoch)
            )
            self._raise_error()

    def next_crew(self) -> int:
        """Return a number that is higher than all before. One rank calls it."""
        return self._do(self._next_crew())

    def report_dead(self, name: str) -> None:
        """Nobody listens at the address of a server: others take its place."""
        if name not in self._reported and self._coordination is not None:
            self._reported.add(name)
            asyncio.run_coroutine_threadsafe(self._delete(name, self._coordination), self._loop)

    async def _delete(self, name: str, coordination: Coordination) -> None:
        try:
            await coordination.delete(SERVERS_PREFIX + name)
        except UnreachableError:
            self._reported.discard(name)  # it is reported again

    def connect(self, address: str, name: str) -> socket.socket:
        """Connect to a server, by this name."""
        return connect_rank(address, self._key, Greeting(name), self._tls)

    def close(self) -> None:
        with suppress(RuntimeError):  # it has ended with an error
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise _unreachable(self._error)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except Exception as error:  # whoever waits for this thread must be told
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            self._loop.run_until_complete(self._end_tasks())
            self._loop.close()

    async def _end_tasks(self) -> None:
        """End what was asked of this thread and is not done."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        coordination = await connect_service(self._address)
        with self._changed:
            self._coordination = coordination
            self._alone_since = time.monotonic()
            self._changed.notify_all()
        try:
            while True:
                try:
                    await self._watch(coordination)
                    return
                except UnreachableError:
                    if self._view is None or not self._address.is_etcd:
                        raise
                    await asyncio.sleep(_RETRY_SECONDS)  # etcd comes back; servers go on without it
        finally:
            await coordination.close()

    async def _watch(self, coordination: Coordination) -> None:
        """Follow all keys until the watch is closed."""
        self._living.clear()  # a watch begins with all keys that there are
        async for changes in await coordination.watch("rows/"):
            with self._changed:
                for change in changes:
                    self._take(change.key, change.value)
                self._changed.notify_all()

    def _take(self, key: str, value: str | None) -> None:
        if key == VIEW_KEY and value is not None:
            self._view = decoded_view(value)
        elif key.startswith(SERVERS_PREFIX):
            (self._living.discard if value is None else self._living.add)(key)
            self._alone_since = None if self._living else time.monotonic()

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do something in the thread, once there is a connection."""
        with self._changed:
            self._changed.wait_for(lambda: self._coordination is not None or self._error is not None)
            self._raise_error()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return wait_for(future, self._raise_error)  # the thread may end without doing it
        except UnreachableError as error:  # before the thread has noticed it
            raise _unreachable(error) from None
        except CancelledError:
            self._thread.join()
            self._raise_error()
            raise

    async def _begin_anew(self) -> int:
        """Return the epoch in which the rows begin."""
        assert self._coordination is not None
        servers: dict[str, ServerAddress] = {}
        try:
            async with asyncio.timeout(_START_SECONDS):
                async for changes in await self._coordination.watch(SERVERS_PREFIX):
                    for change in changes:
                        name = change.key.removeprefix(SERVERS_PREFIX)
                        if change.value is None:
                            servers.pop(name, None)
                        else:
                            servers[name] = decoded_server(change.value)
                    if sum(not server.is_leaving for server in servers.values()) >= self._count:
                        return await self._swap(servers)
                raise asyncio.CancelledError  # the thread ends
        except TimeoutError:
            raise OnecurveError(
                f"params: {len(servers)} of {self._count} row servers have started within {_START_SECONDS:g} s"
            ) from None

    async def _swap(self, servers: dict[str, ServerAddress]) -> int:
        """Write the view with which the rows begin; return its epoch."""
        assert self._coordination is not None
        while True:
            entry = await self._coordination.get(VIEW_KEY)
            before = decoded_view(entry.value) if entry is not None else None
            view = first_view(servers, self._copies, before, self._settings.encoded())
            text = encoded(view)
            if entry is None:
                is_written = await self._coordination.create(VIEW_KEY, text)
            else:
                is_written = await self._coordination.compare_and_set(VIEW_KEY, entry.version, text)
            if is_written:
                return view.epoch

    async def _next_crew(self) -> int:
        assert self._coordination is not None
        while True:
            entry = await self._coordination.get(CREW_KEY)
            if entry is None:
                if await self._coordination.create(CREW_KEY, "1"):
                    return 1
            elif await self._coordination.compare_and_set(CREW_KEY, entry.version, str(int(entry.value) + 1)):
                return int(entry.value) + 1


def _unreachable(error: Exception) -> OnecurveError:
    return OnecurveError(f"the row servers cannot be reached: {error}")
