"""The client of the in-memory backend in the process that holds the state."""

import asyncio
import secrets
from collections.abc import Sequence

from onecurve.coordination.clock import ServingClock
from onecurve.coordination.entry import Change, Entry, check_entry, check_key, check_prefix
from onecurve.coordination.lease import Lease, lease_number
from onecurve.coordination.state import KeyValueState
from onecurve.coordination.watch import Watch


class LocalCoordination:
    """Coordination without the network: with itself, or through a `Server` in the same event loop."""

    def __init__(self, state: KeyValueState, clock: ServingClock) -> None:
        self._state, self._clock = state, clock
        self._leases: set[Lease] = set()
        self._watches: set[Watch] = set()

    async def lease(self, seconds: float) -> Lease:
        number = secrets.randbits(62)

        async def renew() -> bool:
            return self._state.keep_alive(number, self._clock.now())

        async def revoke() -> None:
            self._state.revoke(number)

        granted_at = asyncio.get_running_loop().time()
        self._state.grant(number, seconds, self._clock.now())
        lease = Lease(number, seconds, granted_at, renew, revoke)
        self._leases.add(lease)
        return lease

    async def create(self, key: str, value: str, lease: Lease | None = None) -> bool:
        check_entry(key, value)
        return self._state.create(key, value, lease_number(lease), _token())

    async def put(self, key: str, value: str, lease: Lease | None = None) -> None:
        check_entry(key, value)
        self._state.put(key, value, lease_number(lease), _token())

    async def get(self, key: str) -> Entry | None:
        check_key(key)
        return self._state.get(key)

    async def compare_and_set(self, key: str, version: int, value: str) -> bool:
        check_entry(key, value)
        return self._state.compare_and_set(key, version, value, _token())

    async def delete(self, key: str) -> bool:
        check_key(key)
        present = self._state.get(key)
        return present is not None and self._state.delete(key, present.version)

    async def watch(self, prefix: str) -> Watch:
        check_prefix(prefix)

        def deliver(changes: Sequence[Change]) -> None:
            watch.add_changes(changes)

        def unwatch() -> None:
            self._state.unwatch(prefix, deliver)
            self._watches.discard(watch)

        watch = Watch(prefix, unwatch)
        self._watches.add(watch)
        watch.add_listing(self._state.listing(prefix), self._state.revision)
        self._state.watch(prefix, deliver)
        return watch

    async def close(self) -> None:
        for watch in [*self._watches]:
            watch.close()
        for lease in self._leases:
            await lease.abandon()


def _token() -> str:
    return secrets.token_hex(8)
