"""Leads a run through its generations: when one has ended, decides how the next one is formed."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from onecurve.describe.errors import InterruptError, OnecurveError, SignalName
from onecurve.describe.estimate import PredictedStep
from onecurve.describe.generation import Interruption
from onecurve.describe.host import HostRange, Straggler
from onecurve.describe.plan import Plan
from onecurve.hosts.decision import Asked, Facts, decide
from onecurve.hosts.generation_end import GenerationEnd
from onecurve.hosts.leader import Leader, Placement
from onecurve.hosts.membership import Hosts
from onecurve.launch.failure import RankFailedError

_WAIT_SECONDS = 600.0
"""How long a run waits for hosts that take the place of lost ones."""

_SLOW_SECONDS = 20.0
"""A rank that is slow for about this long gets less to do; for a shorter time, it is only named."""
_REBALANCE_SECONDS = 60.0
"""Time from the first rebalancing to the next; it is longer after each."""


@dataclass(frozen=True)
class Crew:
    """Which ranks a generation has, and how they split the job."""

    placement: Placement
    plan: Plan | None = None
    predicted: PredictedStep = field(default_factory=PredictedStep)
    """Empty if nothing is known."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(ranks for _, ranks in self.placement)


class Crews(Protocol):
    """Finds crews."""

    def fits(self, hosts: Hosts, most: int, /) -> bool:
        """True if the run need not wait for further hosts, up to `most`."""

    async def choose(self, hosts: Hosts) -> Crew:
        """The crew for these hosts."""

    async def larger(self, crew: Crew, hosts: Hosts, /) -> bool:
        """True if these hosts, of which some are new, would have a crew that is worth a change."""

    async def prepare(self, hosts: Hosts, /) -> None:
        """Find the crews that will be needed if hosts are lost, so that `choose` then knows them."""

    def smaller(self, crew: Crew) -> Crew | None:
        """The crew with a plan that needs less memory; None if there is none."""

    def rebalanced(self, crew: Crew, speeds: Mapping[int, float]) -> Crew | None:
        """The crew in which slow ranks do less; None if there is none. `speeds`: of these, where the others have 1."""


async def lead(leader: Leader, work: str, count: HostRange, crews: Crews, renews: bool = False) -> str:
    """Run one generation after the other until the work is done; return the result of rank 0.

    `renews`: no process takes part in two of them. Raises the error that ended the run, if it cannot go on.
    """
    return await _Recovery(leader, work, count, crews, renews).lead()


class _Recovery:
    def __init__(self, leader: Leader, work: str, count: HostRange, crews: Crews, renews: bool) -> None:
        self._leader, self._work, self._count, self._crews = leader, work, count, crews
        self._renews = renews
        self._begin = time.time()
        self._sizes: dict[int, int] = {}
        """Ranks of the generations so far."""
        self._step = -1
        self._failures = self._failures_at_step = self._corruptions = 0
        self._has_trained = False
        self._asked: Asked = ""
        self._rebalanced: Crew | None = None
        self._rebalances = 0
        self._rebalance_after = 0.0

    async def lead(self) -> str:
        leader, interruption = self._leader, None
        if leader.inherited is None:
            crew = await self._crews.choose(await leader.wait_for_hosts(self._count, fits=self._crews.fits))
        else:
            crew, interruption = await self._go_on(self._inherit(), await leader.end_inherited())
        while True:
            self._sizes[leader.next_generation] = crew.size
            end = await self._run(crew, interruption)
            if end.result is not None:
                return end.result
            crew, interruption = await self._go_on(crew, end)

    def _inherit(self) -> Crew:
        """Take over what the leader that is lost has begun; return its crew."""
        inherited = self._leader.inherited
        assert inherited is not None
        generation = inherited.generation
        if generation is None or inherited.work != self._work:
            raise InterruptError("the host that led the run is lost; started again, the run continues", "SIGTERM")
        self._sizes[generation.number] = generation.size
        if (earlier := generation.interruption) is not None:
            self._failures, self._has_trained = earlier.failures, earlier.has_trained
            self._begin -= earlier.run_seconds
            if earlier.snapshot is not None:
                self._sizes[earlier.snapshot.generation] = earlier.snapshot.ranks
        return Crew([(self._leader.host, generation.size)], generation.plan, generation.predicted)

    async def _run(self, crew: Crew, interruption: Interruption | None) -> GenerationEnd:
        """Run one generation, and look for a better crew meanwhile."""
        self._asked = ""
        hosts = self._leader.candidates
        beside = [
            asyncio.create_task(self._unless_it_fails(self._crews.prepare(hosts))),
            asyncio.create_task(self._improve(crew, set(hosts))),
        ]
        try:
            return await self._leader.run_generation(
                self._work, crew.placement, crew.plan, crew.predicted, interruption, self._renews
            )
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)  # the generation itself tells how it ended

    async def _improve(self, crew: Crew, considered: set[str]) -> None:
        """Ask the generation to end when another crew would be faster. `considered`: hosts that are not new."""
        leader, crews = self._leader, self._crews
        updates = leader.updates()
        named: set[int] = set()
        tried: set[Straggler] = set()
        while True:
            stragglers = leader.stragglers
            self._name_new(stragglers, named)
            slow = [straggler for straggler in stragglers if straggler.seconds >= _SLOW_SECONDS]
            if not tried.issuperset(slow) and self._rebalance(crew, {each.rank: each.speed for each in slow}):
                names = ", ".join(f"rank {straggler.rank} on {stragglers[straggler]}" for straggler in slow)
                return await leader.regroup(f"{names} {'is' if len(slow) == 1 else 'are'} slow")
            tried.update(slow)
            hosts = leader.candidates
            joined = [registration.name for host, registration in hosts.items() if host not in considered]
            considered |= hosts.keys()
            if joined and await self._unless_it_fails(crews.larger(crew, hosts)):
                self._asked = "grow"
                return await leader.regroup(f"{', '.join(joined)} {'has' if len(joined) == 1 else 'have'} joined")
            await updates.wait()

    def _name_new(self, stragglers: Mapping[Straggler, str], named: set[int]) -> None:
        """Say which ranks are slow, each once."""
        for straggler, host in stragglers.items():
            if straggler.rank not in named:
                named.add(straggler.rank)
                self._leader.say(
                    f"rank {straggler.rank} on {host} is slow: the others wait for it most of the time; per sample it "
                    f"has {straggler.speed:.0%} of their speed"
                )

    def _rebalance(self, crew: Crew, speeds: Mapping[int, float]) -> bool:
        """Choose a crew in which slow ranks do less; return False if there is none, or the last change is not long ago.

        On hosts whose speeds change all the time, changes get rarer.
        """
        now = time.monotonic()
        if now < self._rebalance_after:
            return False
        self._rebalanced = self._crews.rebalanced(crew, speeds)
        if self._rebalanced is None:
            return False
        self._asked = "rebalance"
        self._rebalances += 1
        self._rebalance_after = now + self._rebalances * _REBALANCE_SECONDS
        return True

    async def _unless_it_fails(self, work: Awaitable[bool | None]) -> bool:
        """Do what would only make the run faster: an error in it is said, and does not end the run."""
        try:
            return bool(await work)
        except OnecurveError as error:
            self._leader.say(f"no other plan: {error}")
            return False

    async def _go_on(self, crew: Crew, end: GenerationEnd) -> tuple[Crew, Interruption]:
        """The crew of the next generation, and what it is told about the end of this one.

        Raises the error that ended the run, if it cannot go on.
        """
        left = time.time()
        if end.is_failure or not self._asked:
            self._failures += 1
            self._failures_at_step = self._failures_at_step + 1 if end.step == self._step else 1
        is_corrupted = any(failure.is_corrupted for failure in end.failures)
        self._corruptions = self._corruptions + 1 if is_corrupted else 0
        self._step = end.step
        self._has_trained = self._has_trained or end.step > 0
        number = self._leader.next_generation
        following = await self._next_crew(crew, end)
        if self._renews:  # nobody else says it
            self._leader.say(f"{end.why()}; all ranks start again")
        other_work = self._leader.next_generation > number  # to measure links; the ranks that knew the facts are gone
        interruption = Interruption(
            why=end.why(),
            step=end.step,
            time=end.broken_at,
            seconds={"leave": left - end.broken_at, "agree": time.time() - left},
            facts_known=end.facts_known and not other_work,
            has_trained=self._has_trained,
            plan_changed=following.plan != crew.plan,
            snapshot=end.newest_snapshot(self._sizes),
            failures=self._failures,
            run_seconds=time.time() - self._begin,
        )
        return following, interruption

    async def _next_crew(self, crew: Crew, end: GenerationEnd) -> Crew:
        leader = self._leader
        smaller = self._crews.smaller(crew)
        decision = decide(
            Facts(
                failures=tuple(end.failures),
                hosts=leader.hosts,
                lost_hosts=len(end.lost),
                least_hosts=self._count.least,
                failures_at_step=self._failures_at_step,
                corruptions=self._corruptions,
                is_stopping=leader.stopped_by is not None,
                has_smaller_plan=smaller is not None,
                asked=self._asked,
            )
        )
        if decision.action == "give up":
            raise _final_error(end, decision.reason, leader.stopped_by)
        if decision.action == "continue":
            return crew
        if decision.action == "smaller footprint" and smaller is not None:
            leader.say(f"{end.why()}; trying {smaller.plan}")  # it may run out of memory before a rank can say it
            self._failures_at_step = 0  # this plan has not failed there
            return smaller
        if decision.action == "rebalance" and self._rebalanced is not None:
            return self._rebalanced
        if decision.action == "wait":
            leader.say(f"{end.why()}; waiting for another host")
        return await self._crews.choose(await leader.wait_for_hosts(self._count, _WAIT_SECONDS))


def _final_error(end: GenerationEnd, reason: str, stopped_by: SignalName | None) -> OnecurveError:
    error = end.error()
    if not reason:
        return error
    text = f"{error}; {reason}"
    return InterruptError(text, stopped_by) if stopped_by is not None else RankFailedError(text)
