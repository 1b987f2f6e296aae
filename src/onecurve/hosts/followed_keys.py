"""What is written under some keys, taken in in the background, for those who wait for it."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.entry import Change
from onecurve.describe.errors import OnecurveError


class FollowedKeys:
    """Keys that are followed inside a `with` block. Several may wait for changes, each with its own `updates`."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self.next_update = asyncio.Event()
        """Set at the next update; each has an event of its own."""
        self.failure: OnecurveError | None = None
        """Why the keys can no longer be followed; None if they can."""
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()

    def follow(self, prefix: str, take: Callable[[str, Change], None]) -> None:
        """Call `take` with the rest of the key and its change, for all that is written under a prefix."""

        async def follow() -> None:
            try:
                async for changes in await self._coordination.watch(prefix):
                    for change in changes:
                        take(change.key.removeprefix(prefix), change)
                    self._update()
            except OnecurveError as error:  # not readable, as from another version, or the service is gone
                self.failure = error
                self._update()

        self._tasks.append(asyncio.create_task(follow()))

    def updates(self) -> "Updates":
        """All updates from now on, for one that waits for them."""
        return Updates(self)

    def _update(self) -> None:
        self.next_update.set()
        self.next_update = asyncio.Event()


class Updates:
    """Updates of followed keys, as one waiter sees them: one that comes while it does not wait is not lost."""

    def __init__(self, keys: FollowedKeys) -> None:
        self._keys = keys
        self._next = keys.next_update

    async def wait(self) -> None:
        """Wait until something has changed since the last call. Raises OnecurveError if nothing more can change."""
        if self._keys.failure is None:
            await self._next.wait()
            self._next = self._keys.next_update
        if self._keys.failure is not None:
            raise self._keys.failure

    async def wait_for(self, seconds: float) -> bool:
        """Wait as `wait` does; return False if nothing has changed for this time."""
        try:
            await asyncio.wait_for(self.wait(), seconds)
        except TimeoutError:
            return False
        return True
