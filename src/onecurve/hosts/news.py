"""What is written under some keys, taken in in the background, for those who wait for it."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.entry import Change
from onecurve.describe.errors import OnecurveError


class News:
    """Keys that are followed inside a `with` block. Several may wait for news; each looks itself what has changed."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self._arrived = asyncio.Event()
        self._failure: OnecurveError | None = None
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
                    self._arrived.set()
            except OnecurveError as error:  # not readable, as from another version, or the service is gone
                self._failure = error
                self._arrived.set()

        self._tasks.append(asyncio.create_task(follow()))

    async def wait(self) -> None:
        """Wait for news. Raises OnecurveError if there can be none."""
        await self._arrived.wait()
        self._arrived.clear()
        if self._failure is not None:
            raise self._failure

    async def wait_for(self, seconds: float) -> bool:
        """Wait for news; return False if there are none for this time."""
        try:
            await asyncio.wait_for(self.wait(), seconds)
        except TimeoutError:
            return False
        return True
