"""Keeps the view in step with the servers that live. Every server does it, and the first to swap the key wins.

Keys: `rows/view`, and `rows/servers/NAME` for every server that lives: it belongs to the server's lease, and whoever
sees that the process is dead may delete it.

A service that was away for longer than a lease deletes the keys of all servers when it is back. A server that was out
of touch with it therefore waits until the others had time to say that they live, before it takes them for dead.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.entry import Change
from onecurve.coordination.errors import UnreachableError
from onecurve.coordination.watch import Watch
from onecurve.describe.errors import OnecurveError
from onecurve.params.view import ServerAddress, View
from onecurve.params.view_changes import lost_slots, next_move, taking_part, with_server, without

VIEW_KEY, SERVERS_PREFIX = "rows/view", "rows/servers/"

_GRACE_SECONDS = 4.0
"""Servers that live have said so in this time after the service is back: an attempt to reach it takes up to 3."""
_RETRY_SECONDS = 0.1

_log = logging.getLogger(__name__)


def encoded(noun: View | ServerAddress) -> str:
    return msgspec.json.encode(noun).decode()


def decoded_view(text: str) -> View:
    return msgspec.json.decode(text, type=View)


def decoded_server(text: str) -> ServerAddress:
    return msgspec.json.decode(text, type=ServerAddress)


class ViewFollower:
    """Follows the view and the servers that live, and changes the view where it must."""

    def __init__(
        self,
        name: str,
        coordination: Coordination,
        on_view: Callable[[View], None],
        on_forgotten: Callable[[], None] = lambda: None,
        waits: bool = False,
    ) -> None:
        """`name`: of this server. `on_view`: told every new view. `on_forgotten`: told that the key of this server was
        deleted, although others have not taken its place. `waits`: a service that cannot be reached will come back."""
        self._waits = waits
        self._name, self._coordination, self._on_view = name, coordination, on_view
        self._on_forgotten = on_forgotten
        self._patient_until = 0.0
        self._servers: dict[str, ServerAddress] = {}
        self._view: View | None = None
        self._version = 0
        self._watch: Watch | None = None
        self._begins_anew = True
        """True if the watch is to begin again when it ends."""

    async def follow(self) -> None:
        """Follow until the service is closed. Raises an OnecurveError if this server was taken for dead."""
        while self._begins_anew:
            self._begins_anew = False
            try:
                self._watch = await self._coordination.watch("rows/")
                self._servers.clear()  # the watch begins with all keys that there are
                async for changes in self._watch:
                    await self._take(changes)
            except UnreachableError:
                if not self._waits:
                    raise
                self._begins_anew = True
                await asyncio.sleep(_RETRY_SECONDS)

    async def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.key == VIEW_KEY and change.value is not None:
                self._take_view(decoded_view(change.value), change.version)
            elif change.key.startswith(SERVERS_PREFIX):
                name = change.key.removeprefix(SERVERS_PREFIX)
                if change.value is None:
                    self._servers.pop(name, None)
                    if name == self._name:
                        self._on_forgotten()
                else:
                    self._servers[name] = decoded_server(change.value)
        await self._improve()

    def _take_view(self, view: View, version: int) -> None:
        self._refuse_removal(view)
        self._view, self._version = view, version
        self._on_view(view)

    def note_out_of_touch(self) -> None:
        """The service does not answer: nobody is taken for dead until it does."""
        self._patient_until = math.inf

    async def refuse_removal(self) -> None:
        """Raise an error if others have taken the place of this server while it was out of touch."""
        entry = await self._coordination.get(VIEW_KEY)
        if entry is not None:
            self._refuse_removal(decoded_view(entry.value))

    async def note_in_touch(self) -> None:
        """The service answers again, and knows this server."""
        self._patient_until = asyncio.get_running_loop().time() + _GRACE_SECONDS
        self._begins_anew = True
        if self._watch is not None:  # its connection may be one that nobody else knows any more
            self._watch.close()
        await asyncio.sleep(_GRACE_SECONDS)
        with suppress(UnreachableError):  # it is away again, and will be watched again
            await self._improve()

    def _refuse_removal(self, view: View) -> None:
        """Raise an error if this server had a place in the view, and has none in this one without asking for that."""
        had_place = self._view is not None and self._name in self._view.servers
        own = self._servers.get(self._name)
        if had_place and self._name not in view.servers and not (own is not None and own.is_leaving):
            raise OnecurveError(f"server {self._name} was taken for dead: others have taken its place")

    async def take_part(self, epoch: int, joined: Mapping[int, str]) -> None:
        """Let servers take part that had a copy in this epoch. In a later one they may have begun to join anew."""
        if self._view is None or self._view.epoch != epoch:
            return
        for begin, name in joined.items():
            if changed := taking_part(self._view, begin, name):
                await self._swap(changed)
                return  # the others follow with the next view

    async def report_dead(self, name: str) -> None:
        """The process of a server is dead."""
        await self._coordination.delete(SERVERS_PREFIX + name)

    async def _improve(self) -> None:
        """Make the first change that is needed; its result is seen as a change of the key."""
        view = self._view
        if view is None or not self._servers:
            return
        is_patient = asyncio.get_running_loop().time() < self._patient_until
        for name in view.servers:
            if name not in self._servers and name != self._name and not is_patient:
                if lost := lost_slots(view, name):
                    _log.error("the rows of slots %s are lost with server %s", lost, name)
                if changed := without(view, name):
                    await self._swap(changed)
                    return
        for name, server in self._servers.items():
            if changed := with_server(view, name, server):
                await self._swap(changed)
                return
        if changed := next_move(view, view.copies):
            await self._swap(changed)

    async def _swap(self, changed: View) -> None:
        """Another server may have been faster: its change comes by the watch."""
        await self._coordination.compare_and_set(VIEW_KEY, self._version, encoded(changed))
