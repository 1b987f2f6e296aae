"""While a generation runs: a straggler is named, and later gets less to do."""

import asyncio
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from onecurve.describe.assignment import RankFailure
from onecurve.describe.errors import InterruptError
from onecurve.describe.generation import Interruption
from onecurve.describe.host import HostRange, HostRegistration, HostReport, Straggler
from onecurve.describe.plan import Plan
from onecurve.hosts.followed_keys import FollowedKeys
from onecurve.hosts.generation_end import GenerationEnd
from onecurve.hosts.recovery import Crew, _Recovery, lead
from onecurve.launch.failure import RankFailedError

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


class Generations(Leader):
    """A leader whose generations end as they are told."""

    inherited = None

    def __init__(self, *ends: GenerationEnd, measures: bool = False) -> None:
        super().__init__()
        self.ends, self.measures = [*ends], measures
        self.next_generation, self.hosts, self.stopped_by = 1, 1, None
        self.told: list[Interruption | None] = []
        self.plans: list[str] = []

    async def wait_for_hosts(self, *_: object, **__: object) -> dict[str, Any]:
        if self.measures and self.told:
            self.next_generation += 1  # ranks that measure links
        return {}

    async def run_generation(self, _: str, __: Any, plan: Plan, *rest: Any) -> GenerationEnd:
        self.told.append(rest[1])
        self.plans.append(str(plan))
        self.next_generation += 1
        return self.ends.pop(0)


class Choice(Crews):
    """Always the same crew, and a smaller plan if there is one."""

    smaller_plan = ""

    def fits(self, *_: object) -> bool:
        return True

    async def choose(self, _: object) -> Crew:
        return CREW

    async def prepare(self, _: object) -> None:
        pass

    def smaller(self, crew: Crew) -> Crew | None:
        return Crew(crew.placement, Plan.parse(self.smaller_plan)) if self.smaller_plan else None


KILLED = RankFailure(rank=1, time=5.0, exit_status=-9)
FULL = RankFailure(rank=1, time=5.0, text="no memory", is_out_of_memory=True)


def ended(step: int, *failures: RankFailure, knows: bool = True) -> GenerationEnd:
    report = HostReport(generation=1, failures=failures, step=step, facts_known=knows)
    return GenerationEnd([("h0", report)], broken_at=10.0)


DONE = GenerationEnd([("h0", HostReport(generation=1, result="the summary"))])


def led(leader: Generations, smaller: str = "", renews: bool = False) -> str:
    crews: Any = Choice(finds=False)
    crews.smaller_plan = smaller
    made: Any = leader
    return asyncio.run(lead(made, "run", HostRange(1, 1), crews, renews))


def test_the_next_generation_is_told_how_the_one_before_has_ended() -> None:
    leader = Generations(ended(0, KILLED), ended(7, KILLED, knows=False), ended(7, KILLED), DONE)
    assert led(leader) == "the summary"
    first, *told = leader.told
    assert first is None
    assert [(each.why, each.step, each.failures) for each in told if each] == [
        ("lost rank 1 on h0 (SIGKILL)", 0, 1),
        ("lost rank 1 on h0 (SIGKILL)", 7, 2),
        ("lost rank 1 on h0 (SIGKILL)", 7, 3),
    ]
    assert [each.has_trained for each in told if each] == [False, True, True]
    assert [each.facts_known for each in told if each] == [True, False, True]
    assert not any(each.plan_changed for each in told if each)
    assert all(each.seconds["leave"] > 1e9 for each in told if each)  # since 10 s after the epoch
    assert all(0 <= each.run_seconds < 60 for each in told if each)
    assert leader.said == []


def test_a_run_that_fails_three_times_at_a_step_is_given_up() -> None:
    with pytest.raises(RankFailedError, match="3 times at the same step"):
        led(Generations(*[ended(7, KILLED)] * 3))
    assert led(Generations(ended(7, KILLED), ended(7, KILLED), ended(8, KILLED), ended(8, KILLED), DONE))


def test_a_run_that_was_stopped_says_so() -> None:
    leader = Generations(ended(7, KILLED))
    leader.stopped_by = "SIGTERM"  # type: ignore[assignment]
    with pytest.raises(InterruptError, match="it continues from its newest checkpoint"):
        led(leader)


def test_a_smaller_plan_is_tried_when_memory_runs_out() -> None:
    leader = Generations(*[ended(0, FULL)] * 2, DONE)
    assert led(leader, smaller="replicate2 mb2×2") == "the summary"
    assert leader.plans == ["replicate2 mb4 fp32", "replicate2 mb2×2 fp32", "replicate2 mb2×2 fp32"]
    assert leader.said == ["lost rank 1 on h0 (out of memory); trying replicate2 mb2×2 fp32"] * 2
    assert [each.plan_changed for each in leader.told if each] == [True, False]
    with pytest.raises(RankFailedError, match="found no such plan"):
        led(Generations(ended(0, FULL)))


def test_ranks_that_measured_links_do_not_know_the_facts() -> None:
    lost = GenerationEnd([("h0", HostReport(generation=1, facts_known=True))], ["h1"])
    for measures in (False, True):
        leader = Generations(lost, DONE, measures=measures)
        led(leader)
        assert leader.told[1] is not None
        assert leader.told[1].facts_known != measures


def test_a_run_whose_ranks_start_again_says_why() -> None:
    leader = Generations(ended(7, KILLED), DONE)
    led(leader, renews=True)
    assert leader.said == ["lost rank 1 on h0 (SIGKILL); all ranks start again"]


def test_changes_for_slow_ranks_get_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is possible a minute after the first, the third two minutes after the second."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    made: Any = Leader()
    recovery = _Recovery(made, "run", HostRange(1, 1), Crews(finds=True), renews=False)  # type: ignore[arg-type]
    changed = []
    for second in range(0, 400, 10):
        now = float(second)
        if recovery._rebalance(CREW, {1: 0.5}):
            changed.append(second)
    assert changed == [0, 60, 180, 360]
