"""What a keeper is told about its ranks while they train."""

from typing import Protocol

from onecurve.describe.host import RankPosition, Straggler


class RankObserver(Protocol):
    """Told by `HostRanks`."""

    async def stalled(self, positions: tuple[RankPosition, ...]) -> None:
        """All ranks of this host make no progress, and are here; () when one does again."""

    async def straggles(self, straggler: Straggler) -> None:
        """The others wait for this rank most of the time, or no longer do."""
