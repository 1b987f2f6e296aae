"""Watches: what changes under a prefix, as a caller sees it."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from onecurve.coordination.entry import Change


class Watch:
    """An async iterator over lists of changes to the keys that begin with a prefix.

    The first list has the keys that are present, in alphabetical order; it may be empty. Every later list has changes
    in the order in which they happened, and none is left out. Only if the connection to the service was interrupted,
    or etcd has compacted its history meanwhile, several changes of one key may be reported as the last one of them.

    Iteration raises UnreachableError if the service cannot be reached any more, and ends when the watch is closed.
    """

    def __init__(self, prefix: str, on_close: Callable[[], None]) -> None:
        self.prefix = prefix
        self._on_close = on_close
        self._versions: dict[str, int] | None = None
        """The keys that the caller knows, with their versions; None before the first list."""
        self._lists: deque[list[Change]] = deque()
        self._error: Exception | None = None
        self._is_closed = False
        self._wake_up = asyncio.Event()

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> list[Change]:
        while not self._lists:
            if self._is_closed:
                raise StopAsyncIteration
            if self._error is not None:
                raise self._error
            self._wake_up.clear()
            await self._wake_up.wait()
        return self._lists.popleft()

    def close(self) -> None:
        """End the watch, and the iteration over it."""
        if not self._is_closed:
            self._is_closed = True
            self._wake_up.set()
            self._on_close()

    def add_listing(self, present: Iterable[Change], revision: int) -> None:
        """Report the keys that were present at a revision: at first all, later what differs from what was reported."""
        listing = list(present)
        known = self._versions or {}
        changes = [change for change in listing if change.version > known.get(change.key, 0)]
        present_keys = {change.key for change in listing}
        changes += [Change(key, None, revision) for key in known if key not in present_keys]
        is_first = self._versions is None
        self._versions = {change.key: change.version for change in listing}
        if changes or is_first:
            self._add(changes)

    def add_changes(self, changes: Sequence[Change]) -> None:
        """Report changes that follow the listing."""
        assert self._versions is not None, "changes before the listing"
        for change in changes:
            if change.value is None:
                self._versions.pop(change.key, None)
            else:
                self._versions[change.key] = change.version
        self._add(list(changes))

    def fail(self, error: Exception) -> None:
        """Let the iteration raise an error, after what was reported before."""
        self._error = error
        self._wake_up.set()

    def _add(self, changes: list[Change]) -> None:
        self._lists.append(changes)
        self._wake_up.set()
