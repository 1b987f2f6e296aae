"""The process of a row server.

    python -m onecurve.servers.row_process

It reads one line of JSON from its standard input, a `ServerOrder`: no list of processes shows the job's key.
"""

import asyncio
import logging
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass

import msgspec

from onecurve.coordination.client import RemoteCoordination
from onecurve.describe.errors import OnecurveError
from onecurve.params.replication import RowServer
from onecurve.params.row_service import RowService
from onecurve.params.served_rows import Gradients, ServedRows
from onecurve.params.step_log import RowCrew
from onecurve.params.view import ServerAddress, View
from onecurve.servers.greeting import Greeting, connect_server, welcome
from onecurve.servers.settings import RowSettings, compile_kernels
from onecurve.servers.view_follower import SERVERS_PREFIX, ViewFollower, encoded

_NOBODY = RowCrew(0, 0)
"""The crew before the first one."""
_LEASE_SECONDS = 3.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerOrder:
    """What a server is started with."""

    name: str
    """One that no server has had before."""
    machine: str
    listen: str
    """Address of this host at which it is reached."""
    coordination_host: str
    coordination_port: int
    key: str
    """The job's key, in hexadecimal digits."""
    copies: int = 2


class RowProcess:
    """A row server, from the first connection that tells it about the job."""

    def __init__(self, order: ServerOrder) -> None:
        self._order, self._key = order, bytes.fromhex(order.key)
        self._settings: RowSettings | None = None
        self._service: RowService | None = None
        self._view: View | None = None
        self._follower: ViewFollower | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the coordination service is gone, or this server is taken for dead."""
        order = self._order
        compile_kernels()
        listener = await asyncio.start_server(self._accept, order.listen, 0)
        port = listener.sockets[0].getsockname()[1]
        coordination = await RemoteCoordination.connect(order.coordination_host, order.coordination_port, self._key)
        self._follower = ViewFollower(order.name, coordination, order.copies, self._take_view)
        lease = await coordination.lease(_LEASE_SECONDS)
        server = ServerAddress(f"{order.listen}:{port}", order.machine)
        await coordination.create(SERVERS_PREFIX + order.name, encoded(server), lease)
        async with listener:
            following = asyncio.create_task(self._follower.follow())
            lost = asyncio.create_task(lease.lost.wait())
            await asyncio.wait([following, lost], return_when=asyncio.FIRST_COMPLETED)
            if not lost.done():
                lost.cancel()
                return following.result()
        raise OnecurveError(f"server {order.name} was silent for {_LEASE_SECONDS:g} s: others have taken its place")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            greeting = await welcome(reader, writer, self._key)
            self._learn(greeting)
            if self._service is None:
                raise OnecurveError("it does not know the job yet")
        except OnecurveError as error:
            _log.warning("connection refused: %s", error)
            writer.close()
            return
        await self._service.serve(greeting.name, reader, writer)

    def _learn(self, greeting: Greeting) -> None:
        if greeting.settings is None:
            return
        if self._settings is None:
            self._begin(greeting.settings)
            self._settings = greeting.settings
        elif greeting.settings != self._settings:
            raise OnecurveError(f"{greeting.name} has another job: its tables, seed or precision differ")

    def _begin(self, settings: RowSettings) -> None:
        stores = settings.new_stores()
        server = RowServer[Gradients](
            self._order.name,
            _NOBODY,
            settings.staleness,
            lambda slots, contents: ServedRows.of(stores, slots, contents),
        )
        self._service = RowService(server, self._connect, self._on_dead, self._on_joined)
        if self._view is not None:
            self._service.change_view(self._view)

    def _take_view(self, view: View) -> None:
        self._view = view
        if self._service is not None:
            self._service.change_view(view)

    async def _connect(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await connect_server(address, self._key, Greeting(self._order.name, self._settings))

    def _on_joined(self, epoch: int, joined: Mapping[int, str]) -> None:
        assert self._follower is not None
        self._spawn(self._follower.take_part(epoch, joined))

    def _on_dead(self, name: str) -> None:
        assert self._follower is not None
        self._spawn(self._follower.report_dead(name))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.readline(), type=ServerOrder)
    asyncio.run(RowProcess(order).run())


if __name__ == "__main__":
    main()
