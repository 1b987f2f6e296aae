"""The key by which a row server says that it lives."""

import asyncio
import logging

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.errors import LeaseLostError, UnreachableError
from onecurve.coordination.lease import Lease
from onecurve.params.view import ServerAddress
from onecurve.servers.view_follower import SERVERS_PREFIX, ViewFollower, encoded

_LEASE_SECONDS = 3.0
_RETRY_SECONDS = 0.1

_log = logging.getLogger(__name__)


class Registration:
    """A key with a lease. If the lease is lost, the server registers again.

    No server stops because the service is away: who answers for which rows is decided by the epochs of the view, not by
    leases. A server whose place was taken meanwhile learns it from the view.
    """

    def __init__(self, coordination: Coordination, name: str, server: ServerAddress) -> None:
        self._coordination, self._key = coordination, SERVERS_PREFIX + name
        self.server = server
        self._lease: Lease | None = None
        self._is_forgotten = asyncio.Event()

    async def begin(self) -> None:
        """Register for the first time."""
        self._lease = await self._coordination.lease(_LEASE_SECONDS)
        await self._coordination.put(self._key, encoded(self.server), self._lease)

    async def stay(self, follower: ViewFollower) -> None:
        """Register again whenever the lease is lost, or somebody has deleted the key."""
        while True:
            await self._wait_until_lost()
            follower.note_out_of_touch()
            _log.warning("the service has not answered for %g s, or has forgotten this server", _LEASE_SECONDS)
            while not await self._register(follower):
                await asyncio.sleep(_RETRY_SECONDS)
            await follower.note_in_touch()

    async def change(self, server: ServerAddress) -> None:
        """Say something else about this server."""
        self.server = server
        await self._coordination.put(self._key, encoded(server), self._lease)

    def note_forgotten(self) -> None:
        """The key was deleted."""
        self._is_forgotten.set()

    async def close(self) -> None:
        if self._lease is not None:
            await self._lease.close()

    async def _wait_until_lost(self) -> None:
        assert self._lease is not None
        ends = [asyncio.create_task(each.wait()) for each in (self._lease.lost, self._is_forgotten)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _register(self, follower: ViewFollower) -> bool:
        if self._lease is not None:
            await self._lease.abandon()
        self._is_forgotten.clear()
        try:
            await follower.refuse_removal()
            await self.begin()
        except (UnreachableError, LeaseLostError):
            return False
        return True
