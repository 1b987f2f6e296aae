"""Watches a generation on all hosts while it runs: which rank the others wait for, and which ranks are slow."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NoReturn

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.entry import Change
from onecurve.coordination.lease import Lease
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.host import GivenUpRank, HostStall, Straggler, Stragglers
from onecurve.hosts.run_keys import RunKeys
from onecurve.hosts.stalls import HungRanks

_POLL_SECONDS = 0.5


class RankMonitor:
    """What the leader knows about the ranks of all hosts. It is written only by hosts whose ranks stand still or are
    slow, so that nothing is said while all is well."""

    def __init__(self, coordination: Coordination, lease: Lease, keys: RunKeys, say: Callable[[str], None]) -> None:
        self._coordination, self._lease, self._keys, self._say = coordination, lease, keys, say
        self._stalls: dict[str, HostStall] = {}
        self._stragglers: dict[str, Stragglers] = {}

    def on_stall(self, host: str, change: Change) -> None:
        self._stalls.pop(host, None)
        if change.value is not None:
            self._stalls[host] = from_json(HostStall, change.value.encode(), f"ranks of host {host}")

    def on_straggler(self, host: str, change: Change) -> None:
        self._stragglers.pop(host, None)
        if change.value is not None:
            self._stragglers[host] = from_json(Stragglers, change.value.encode(), f"stragglers of host {host}")

    def stragglers(self, generation: int) -> dict[Straggler, str]:
        """Ranks of a generation that are slow, with their hosts."""
        return {
            each: host
            for host, found in self._stragglers.items()
            if found.generation == generation
            for each in found.ranks
        }

    async def watch(self, generation: int, names: Mapping[str, str]) -> NoReturn:
        """Name ranks that the others wait for, and have them given up if they take too long. `names`: of the hosts."""
        hung = HungRanks()
        told: dict[int, str] = {}
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            stalls = {host: stall for host, stall in self._stalls.items() if stall.generation == generation}
            found = hung.look(stalls if stalls.keys() >= names.keys() else {})
            waiting = {each.position.rank for each in found}
            for rank in [rank for rank in told if rank not in waiting]:
                self._say(f"{told.pop(rank)} goes on")
            for each in found:
                rank, line = each.position.rank, each.position.line or "a place that is not known"
                told[rank] = f"rank {rank} on {names[each.host]}"
                if each.is_new:
                    self._say(f"all ranks wait for {told[rank]}, which is in {line}")
                if each.is_given_up:
                    given_up = GivenUpRank(generation=generation, rank=rank, what="no progress", line=line)
                    await self._coordination.put(self._keys.give_up, to_json(given_up), self._lease)
