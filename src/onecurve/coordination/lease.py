"""A lease as its owner holds it: renewed in the background until it is closed or lost."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from onecurve.coordination.errors import CoordinationError, UnreachableError

RENEWALS_PER_LEASE = 3
"""A lease is renewed every third of its time, so that one late renewal does not lose it."""

_log = logging.getLogger(__name__)


class Lease:
    """The right to keys that disappear if this process dies or is cut off.

    `lost` is set as soon as the lease may have expired: the service says so, or none of the renewals was confirmed
    for `seconds`, counted from when the last confirmed one was sent. The service deletes the keys not earlier than
    that, so an owner that acts on `lost` at once has stopped before another host can take its place.
    """

    def __init__(
        self,
        number: int,
        seconds: float,
        granted_at: float,
        renew: Callable[[], Awaitable[bool]],
        revoke: Callable[[], Awaitable[None]],
    ) -> None:
        self.number = number
        self.seconds = seconds
        self.lost = asyncio.Event()
        self._renew, self._revoke = renew, revoke
        self._task = asyncio.create_task(self._keep_alive(granted_at))

    async def close(self) -> None:
        """Give the lease back: its keys are deleted now. Does nothing if it is lost."""
        await self.abandon()
        if not self.lost.is_set():
            with suppress(UnreachableError, TimeoutError):  # it expires by itself
                async with asyncio.timeout(self.seconds):
                    await self._revoke()

    async def abandon(self) -> None:
        """Stop the renewals and leave the lease to expire."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _keep_alive(self, confirmed: float) -> None:
        loop = asyncio.get_running_loop()
        reason = f"no renewal was confirmed for {self.seconds:g} s"
        while loop.time() < confirmed + self.seconds:
            await asyncio.sleep(min(self.seconds / RENEWALS_PER_LEASE, confirmed + self.seconds - loop.time()))
            sent = loop.time()
            try:
                async with asyncio.timeout_at(confirmed + self.seconds):
                    is_alive = await self._renew()
            except (TimeoutError, UnreachableError):
                continue
            except CoordinationError as error:
                reason = str(error)
                break
            if not is_alive:
                reason = "it has expired"
                break
            confirmed = sent
        _log.warning("a lease of %g s is lost: %s", self.seconds, reason)
        self.lost.set()


def lease_number(lease: Lease | None) -> int | None:
    return lease.number if lease is not None else None
