"""What this host writes for the leader about its ranks while they train."""

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.lease import Lease
from onecurve.describe.convert import to_json
from onecurve.describe.host import HostStall, RankPosition, Straggler, Stragglers
from onecurve.hosts.run_keys import RunKeys


class RankNotes:
    """The notes of one host about one generation."""

    def __init__(self, coordination: Coordination, lease: Lease, keys: RunKeys, host: str, generation: int) -> None:
        self._coordination, self._lease, self._keys = coordination, lease, keys
        self._host, self._generation = host, generation
        self._stragglers: dict[int, Straggler] = {}

    async def stalled(self, positions: tuple[RankPosition, ...]) -> None:
        """All ranks of this host make no progress, and are here; () when one does again."""
        key = f"{self._keys.stalls}{self._host}"
        if positions:
            await self._coordination.put(key, to_json(HostStall(self._generation, positions)), self._lease)
        else:
            await self._coordination.delete(key)

    async def straggles(self, straggler: Straggler) -> None:
        """The others wait for this rank most of the time, or no longer do."""
        self._stragglers[straggler.rank] = straggler
        if straggler.seconds == 0:
            del self._stragglers[straggler.rank]
        stragglers = Stragglers(self._generation, tuple(self._stragglers.values()))
        await self._coordination.put(f"{self._keys.stragglers}{self._host}", to_json(stragglers), self._lease)
