"""The process of a row server.

    python -m onecurve.servers.row_process

It reads one line of JSON from its standard input, a `ServerOrder`: no list of processes shows the job's key.
"""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from onecurve.coordination.errors import UnreachableError
from onecurve.describe.errors import OnecurveError
from onecurve.describe.row_servers import ServerOrder
from onecurve.device.parent_process import die_with_parent
from onecurve.params.replication import RowServer
from onecurve.params.row_service import RowService
from onecurve.params.row_store import RowStore, Spill
from onecurve.params.served_rows import ServedRows
from onecurve.params.step_log import RowCrew
from onecurve.params.table_holder import Gradients
from onecurve.params.view import ServerAddress, View
from onecurve.servers.encryption import client_context, server_context
from onecurve.servers.greeting import BUFFER_BYTES, Greeting, connect_server, welcome
from onecurve.servers.registration import Registration
from onecurve.servers.service import connect_service
from onecurve.servers.settings import RowSettings, compile_kernels
from onecurve.servers.view_follower import ViewFollower

_NOBODY = RowCrew(0, 0)
"""The crew before the first one."""
_VIEW_SECONDS = 10.0
_RETRY_SECONDS = 0.1

_log = logging.getLogger(__name__)


class RowProcess:
    """A row server, from the first view that tells it about a job."""

    def __init__(self, order: ServerOrder) -> None:
        self._order, self._key = order, bytes.fromhex(order.address.key)
        self._tls = client_context(order.address.tls)
        self._service: RowService | None = None
        self._stores: Mapping[str, RowStore] = {}
        self._restarts = 0
        self._is_leaving = False
        self._has_left = asyncio.Event()
        self._is_begun = asyncio.Event()
        self._follower: ViewFollower | None = None
        self._failure: asyncio.Future[None]
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, on_ready: Callable[[str], None] = lambda _: None) -> None:
        """Serve until the coordination service is gone, this server is taken for dead, or it has handed over its rows
        after SIGTERM. `on_ready`: told the address once it serves."""
        order = self._order
        self._failure = asyncio.get_running_loop().create_future()
        compile_kernels()
        tls = server_context(order.address.tls)
        listener = await asyncio.start_server(self._accept, order.listen, 0, ssl=tls, limit=BUFFER_BYTES)
        port = listener.sockets[0].getsockname()[1]
        coordination = await connect_service(order.address)
        registration = Registration(coordination, order.name, ServerAddress(f"{order.listen}:{port}", order.machine))
        self._follower = ViewFollower(
            order.name, coordination, self._take_view, registration.note_forgotten, order.address.is_etcd
        )
        await registration.begin()
        on_ready(registration.server.address)

        async def leave() -> None:
            self._is_leaving = True
            self._leave_if_it_can()  # nobody has to be told if it has no rows
            await registration.change(replace(registration.server, is_leaving=True))
            self._leave_if_it_can()

        try:
            following = asyncio.create_task(self._follower.follow())
            staying = asyncio.create_task(registration.stay(self._follower))
            left = asyncio.create_task(self._has_left.wait())
            if order.parent is None:
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: self._on_signal(leave))
            ends: list[asyncio.Future[Any]] = [following, staying, left, self._failure]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in (self._failure, following, staying):
                if end.done():
                    end.result()
            following.cancel()
            staying.cancel()
            await registration.close()
            await coordination.close()
        finally:
            listener.close()  # without waiting for connections: what is asked there must not be answered any more

    def _on_signal(self, leave: Callable[[], Coroutine[None, None, None]]) -> None:
        """Leave; at the second signal, without waiting for others to have the rows."""
        if self._is_leaving:
            self._has_left.set()
        else:
            _log.warning("handing the rows over to other servers; a second SIGTERM ends this one without it")
            self._spawn(leave)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            greeting = await welcome(reader, writer, self._key)
            service = await self._begun()
        except OnecurveError as error:
            _log.warning("connection refused: %s", error)
            writer.close()
            return
        with suppress(asyncio.CancelledError):  # this process ends; Python 3.11 would report it as an error
            await service.serve(greeting.name, reader, writer)

    async def _begun(self) -> RowService:
        """The service, once a view has told this server about a job: whoever connects may have seen it before."""
        try:
            async with asyncio.timeout(_VIEW_SECONDS):
                await self._is_begun.wait()
        except TimeoutError:
            raise OnecurveError("no view has told this server about a job") from None
        assert self._service is not None
        return self._service

    def _take_view(self, view: View) -> None:
        if self._restarts != view.restarts:
            self._restarts = view.restarts
            settings = RowSettings.decoded(view.settings)
            spill = Spill(self._order.spill, self._order.memory) if self._order.spill else None
            self._stores = settings.new_stores(spill)
            if self._service is None:
                self._service = self._new_service()
                self._is_begun.set()
        if self._service is not None:
            self._service.change_view(view)
        self._leave_if_it_can()

    def _leave_if_it_can(self) -> None:
        pieces = self._service.view.pieces.values() if self._service is not None else ()
        if self._is_leaving and not any(self._order.name in piece.servers for piece in pieces):
            self._has_left.set()

    def _new_service(self) -> RowService:
        server = RowServer[Gradients](
            self._order.name, _NOBODY, lambda slots, contents: ServedRows.of(self._stores, slots, contents)
        )
        return RowService(server, self._connect, self._on_dead, self._on_joined, self._on_failure)

    def _on_failure(self, error: Exception) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await connect_server(address, self._key, Greeting(self._order.name), self._tls)

    def _on_joined(self, epoch: int, joined: Mapping[int, str]) -> None:
        assert self._follower is not None
        self._spawn(partial(self._follower.take_part, epoch, joined))

    def _on_dead(self, name: str) -> None:
        assert self._follower is not None
        self._spawn(partial(self._follower.report_dead, name))

    def _spawn(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Do something, and again as long as the service cannot be reached."""

        async def repeat() -> None:
            while True:
                with suppress(UnreachableError):
                    return await work()
                await asyncio.sleep(_RETRY_SECONDS)

        task = asyncio.create_task(repeat())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.readline(), type=ServerOrder)
    if order.parent is not None:
        die_with_parent(order.parent)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of the terminal: the launcher decides
            signal.signal(number, signal.SIG_IGN)
    asyncio.run(RowProcess(order).run())


if __name__ == "__main__":
    main()
