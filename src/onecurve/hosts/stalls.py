"""Which rank the others wait for: a pure function of where all ranks are."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onecurve.describe.host import HostStall, RankPosition

_NAME_SECONDS = 1.0
"""How long all hosts make no progress until the rank that they wait for is named. They say so after about 3 s."""
_GIVE_UP_SECONDS = 60.0
_GIVE_UP_STEPS = 20
"""A rank that still runs is given up after 60 s or 20 times its longest step: a long call is not a failure."""


def waited_for(positions: Sequence[RankPosition]) -> list[RankPosition]:
    """The ranks that the others wait for; empty if no rank waits, or all do.

    A rank that does not wait itself is waited for if others wait. DistributedDataParallel waits where this cannot be
    seen: of the ranks that do not seem to wait, those that have started more collectives than others wait for those.
    """
    running = [position for position in positions if not position.waits]
    if not running:
        return []
    least = min(position.common for position in running)
    behind = [position for position in running if position.common == least]
    return behind if len(behind) < len(positions) else []


@dataclass(frozen=True)
class HungRank:
    """A rank that the others wait for."""

    host: str
    position: RankPosition
    is_new: bool
    """True if it has just become clear, and was not told before."""
    is_given_up: bool
    """True if it has now taken too long."""


class HungRanks:
    """Finds the ranks that others wait for, and how long they have done so."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[tuple[int, int], float] = {}
        """By rank and the number of its collectives."""
        self._told: set[tuple[int, int]] = set()

    def look(self, stalls: Mapping[str, HostStall]) -> list[HungRank]:
        """Return the ranks that are waited for long enough. `stalls`: by host; empty if a host makes progress."""
        now = self._clock()
        host_of = {position.rank: host for host, stall in stalls.items() for position in stall.ranks}
        found = waited_for([position for stall in stalls.values() for position in stall.ranks])
        keys = [(position.rank, position.collectives) for position in found]
        self._since = {key: self._since.get(key, now) for key in keys}
        self._told &= self._since.keys()
        hung: list[HungRank] = []
        for key, position in zip(keys, found, strict=True):
            seconds = now - self._since[key]
            if seconds < _NAME_SECONDS:
                continue
            limit = max(_GIVE_UP_SECONDS, _GIVE_UP_STEPS * position.longest_step)
            hung.append(HungRank(host_of[position.rank], position, key not in self._told, seconds >= limit))
            self._told.add(key)
        return hung
