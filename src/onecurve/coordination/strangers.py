"""Connections whose other side has not proved yet that it knows the job's key."""

import asyncio
from typing import Protocol

MAX_STRANGERS = 2048
HANDSHAKE_SECONDS = 5.0
"""A stranger that has not finished the handshake after this time is disconnected."""
_GRACE_SECONDS = 1.0
"""Time for the handshake when others are waiting to be accepted."""


class Stranger(Protocol):
    """A connection that can be dropped."""

    def abort(self, error: Exception | None = None) -> None: ...


class Strangers:
    """A limited number of unproved connections, in the order of their arrival.

    When the limit is reached, nobody else is accepted until the oldest have had a second; then these are dropped. So
    thousands of idle connections hold up a host of the job for a few seconds, and many hosts that arrive at once do
    not push each other out.
    """

    def __init__(self) -> None:
        self._arrived: dict[Stranger, float] = {}
        self._room = asyncio.Event()
        self._room.set()

    def __len__(self) -> int:
        return len(self._arrived)

    def add(self, stranger: Stranger, now: float) -> None:
        self._arrived[stranger] = now
        self._update_room()

    def remove(self, stranger: Stranger) -> None:
        """Forget a connection that has proved itself or has ended."""
        self._arrived.pop(stranger, None)
        self._update_room()

    def drop_late(self, now: float) -> None:
        """Disconnect those that have taken too long. To be called many times per second."""
        allowed = _GRACE_SECONDS if len(self._arrived) >= MAX_STRANGERS else HANDSHAKE_SECONDS
        while self._arrived:
            oldest, arrived = next(iter(self._arrived.items()))
            if now - arrived < allowed:
                return
            self.remove(oldest)
            oldest.abort()

    def drop_all(self) -> None:
        for stranger in [*self._arrived]:
            self.remove(stranger)
            stranger.abort()

    async def room(self) -> int:
        """Wait until another connection may be accepted; return how many."""
        await self._room.wait()
        return MAX_STRANGERS - len(self._arrived)

    def _update_room(self) -> None:
        if len(self._arrived) < MAX_STRANGERS:
            self._room.set()
        else:
            self._room.clear()
