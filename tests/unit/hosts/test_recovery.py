"""While a generation runs: a straggler is named, and later gets less to do."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from onecurve.describe.host import HostRange, HostRegistration, Straggler
from onecurve.describe.plan import Plan
from onecurve.hosts.followed_keys import FollowedKeys
from onecurve.hosts.recovery import Crew, _Recovery

CREW = Crew([("h0", 2)], Plan.parse("replicate2 mb4"))


class Leader:
    """What `_Recovery` asks of a leader; `report` changes what it knows."""

    def __init__(self) -> None:
        self.stragglers: dict[Straggler, str] = {}
        self.candidates: Mapping[str, HostRegistration] = {}
        self.said: list[str] = []
        self.regrouped: list[str] = []
        self._followed = FollowedKeys(SimpleNamespace())  # type: ignore[arg-type]
        self.updates = self._followed.updates
        self.say = self.said.append

    async def regroup(self, why: str) -> None:
        self.regrouped.append(why)

    async def report(self, *stragglers: Straggler) -> None:
        self.stragglers = dict.fromkeys(stragglers, "vm")
        self._followed._update()
        for _ in range(5):
            await asyncio.sleep(0)


class Crews:
    """Finds another crew for stragglers, if `finds`."""

    def __init__(self, finds: bool) -> None:
        self.finds, self.asked = finds, list[Mapping[int, float]]()

    def rebalanced(self, crew: Crew, speeds: Mapping[int, float]) -> Crew | None:
        self.asked.append(speeds)
        return crew if self.finds else None


def watched(reports: list[tuple[Straggler, ...]], finds: bool = True) -> tuple[Leader, Crews]:
    """What comes of these reports, one after the other."""
    leader, crews = Leader(), Crews(finds)

    async def scenario() -> None:
        made: Any = leader
        recovery = _Recovery(made, "run", HostRange(1, 1), crews, renews=False)  # type: ignore[arg-type]
        task = asyncio.ensure_future(recovery._improve(CREW, set()))
        await asyncio.sleep(0)
        for stragglers in reports:
            await leader.report(*stragglers)
        task.cancel()

    asyncio.run(scenario())
    return leader, crews


def slow(seconds: float, rank: int = 1) -> Straggler:
    return Straggler(rank=rank, speed=0.25, seconds=seconds)


def test_a_rank_that_is_slow_for_some_seconds_is_only_named() -> None:
    leader, crews = watched([(slow(5.0),), (slow(10.0),), (), (slow(5.0),)])
    assert leader.said == [
        "rank 1 on vm is slow: the others wait for it most of the time; per sample it has 25% of their speed"
    ]
    assert (leader.regrouped, crews.asked) == ([], [])


def test_a_rank_that_stays_slow_gets_less_to_do() -> None:
    leader, crews = watched([(slow(5.0),), (slow(20.0),)])
    assert leader.regrouped == ["rank 1 on vm is slow"]
    assert crews.asked == [{1: 0.25}]


def test_what_cannot_be_changed_is_tried_once_per_report() -> None:
    leader, crews = watched([(slow(20.0),), (slow(20.0),), (slow(25.0),)], finds=False)
    assert leader.regrouped == []
    assert crews.asked == [{1: 0.25}] * 2


def test_a_rank_that_has_recovered_keeps_its_share() -> None:
    _, crews = watched([(slow(20.0),), (), (slow(20.0, rank=0),)], finds=False)
    assert crews.asked == [{1: 0.25}, {0: 0.25}]
