"""The leader of a run: has generations run on its hosts, and tells all how the run ended."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn, Self, TypeVar

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.entry import Change
from onecurve.coordination.lease import Lease
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import InterruptError, OnecurveError, SignalName
from onecurve.describe.estimate import PredictedStep
from onecurve.describe.generation import Generation, Interruption
from onecurve.describe.host import HostAssignment, HostRange, HostRegistration, HostReport, RunEnd, Straggler
from onecurve.describe.plan import Plan
from onecurve.hosts.followed_keys import FollowedKeys, Updates
from onecurve.hosts.generation_end import GenerationEnd
from onecurve.hosts.member import Member
from onecurve.hosts.membership import Fits, Hosts, Membership
from onecurve.hosts.rank_monitor import RankMonitor
from onecurve.hosts.run_keys import RunKeys
from onecurve.launch.event_loop import first_to_end
from onecurve.launch.failure import RankFailedError
from onecurve.launch.store import served_store

T = TypeVar("T")

_LEAVE_SECONDS = 10.0
"""The other hosts have read how the run or a generation ended within this time."""

Placement = Sequence[tuple[str, int]]
"""Hosts, by the keys of their registrations, with the number of ranks on each; ranks are counted in this order."""


class Leader:
    """Leads a run on the hosts that join it. Its own host comes first in every placement, so that rank 0 is there."""

    def __init__(
        self,
        coordination: Coordination,
        lease: Lease,
        keys: RunKeys,
        member: Member,
        place: str,
        say: Callable[[str], None],
    ) -> None:
        """`lease`, `member`: of the leader's own host. `place`: where the hosts meet. `say`: told which are here."""
        self._coordination, self._lease, self._keys = coordination, lease, keys
        self._member, self._place, self.say = member, place, say
        self.host = member.host
        self.inherited = member.assigned
        """What a leader that is lost has assigned to this host; None if this host has led from the start."""
        generation = self.inherited.generation if self.inherited is not None else None
        self._generation = generation.number if generation is not None else 0
        self._untrained = generation.untrained if generation is not None else 0
        self._reports: dict[str, HostReport] = {}
        self._regroup: tuple[int, str] = (0, "")
        """The newest generation that was asked to hand over to the next one, and why."""
        self._followed = FollowedKeys(coordination)
        self._membership = Membership(
            coordination, lease, keys, member.host, self._followed, gathers=self.inherited is None
        )
        self._monitor = RankMonitor(coordination, lease, keys, say)

    def __enter__(self) -> Self:
        self._followed.follow(self._keys.reports, self._on_report)
        self._followed.follow(self._keys.stalls, self._monitor.on_stall)
        self._followed.follow(self._keys.stragglers, self._monitor.on_straggler)
        return self

    def __exit__(self, *error: Any) -> None:
        self._membership.close()
        self._followed.__exit__(*error)

    @property
    def next_generation(self) -> int:
        """Number of the next generation."""
        return self._generation + 1

    @property
    def hosts(self) -> int:
        """Number of hosts that are here."""
        return len(self._membership.present)

    @property
    def candidates(self) -> Hosts:
        """The hosts that the run could have now: its own that are here, and others that have joined since."""
        return self._membership.candidates

    @property
    def stragglers(self) -> dict[Straggler, str]:
        """Ranks of the current generation that are slow, with the names of their hosts."""
        found = self._monitor.stragglers(self._generation)
        return {straggler: self._membership.members[host].name for straggler, host in found.items()}

    @property
    def stopped_by(self) -> SignalName | None:
        """The signal that a host of the run has received; None if none has."""
        return self._member.stopped.result() if self._member.stopped.done() else None

    def updates(self) -> Updates:
        """Updates, from now on, of what the hosts write."""
        return self._followed.updates()

    async def wait_for_hosts(
        self, count: HostRange, seconds: float | None = None, fits: Fits = lambda *_: True
    ) -> Hosts:
        """Wait until enough hosts are here, see `Membership.wait`; return their registrations, the leader's own first.

        Raises InterruptError if there are not enough hosts after `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self.unless_stopped(self._membership.wait(count, self._place, self.say, fits))
        except TimeoutError:
            raise InterruptError(
                f"there are not enough hosts after {seconds:.0f} s; started again, the run continues", "SIGTERM"
            ) from None

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raises InterruptError as soon as a host of the run has received a signal."""
        return await first_to_end(work, self._raise_when_stopped())

    async def _raise_when_stopped(self) -> NoReturn:
        name = await asyncio.shield(self._member.stopped)
        raise InterruptError("interrupted while no rank was training; earlier checkpoints are unchanged", name)

    async def run(self, work: str, placement: Placement) -> str:
        """Have ranks do something, in a generation of its own; return the result of rank 0.

        Raises RankFailedError if a rank fails, OnecurveError if a host is lost, and InterruptError if a host has
        received a signal before the start.
        """
        end = await self.run_generation(work, placement)
        self._untrained += 1
        if end.result is None:
            raise end.error()
        return end.result

    async def run_generation(
        self,
        work: str,
        placement: Placement,
        plan: Plan | None = None,
        predicted: PredictedStep | None = None,
        interruption: Interruption | None = None,
        renews: bool = False,
    ) -> GenerationEnd:
        """Run one generation, and return how it ended; all ranks that live have left it then.

        `work`: what the ranks do, a verb of their program. `interruption`: what ended the generation before. `renews`:
        have new processes for it. Raises InterruptError if a host has received a signal before the start. After a
        signal during the generation, the ranks end it by themselves.
        """
        if self.stopped_by is not None:
            await self._raise_when_stopped()
        self._generation += 1
        self._reports.clear()
        members = self._membership.members
        async with served_store(members[self.host].address) as store:
            generation = Generation(
                number=self._generation,
                size=sum(ranks for _, ranks in placement),
                hosts=len(placement),
                store=store,
                plan=plan,
                predicted=predicted or PredictedStep(),
                interruption=interruption,
                untrained=self._untrained,
            )
            for host, assigned in assignments(generation, work, placement, members):
                text = to_json(replace(assigned, renews=renews))
                await self._coordination.put(self._keys.assignment(host), text, self._lease)
            names = {host: members[host].name for host, _ in placement}
            watching = asyncio.create_task(self._monitor.watch(self._generation, names))
            try:
                return await self._wait_for_reports(names)
            finally:
                watching.cancel()

    async def end_inherited(self) -> GenerationEnd:
        """End the generation that a leader who is lost has begun; return how it ended."""
        await self._member.declare_broken(self._generation)
        present = self._membership.present
        updates = self.updates()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                while present.keys() - self._reports.keys() or self.host not in self._reports:
                    await updates.wait()
        reports = [(present[host].name, report) for host, report in self._reports.items() if host in present]
        return GenerationEnd(reports=reports, lost=["that led the run"], broken_at=self._member.broken_at)

    async def regroup(self, why: str) -> None:
        """Have the ranks of all hosts leave the current generation after their next snapshot."""
        self._regroup = (self._generation, why)
        await self._coordination.put(self._keys.regroup, str(self._generation), self._lease)

    async def end(self, end: RunEnd) -> None:
        """Tell all hosts how the run ended."""
        await self._coordination.put(self._keys.end, to_json(end), self._lease)

    async def wait_until_left(self) -> None:
        """Wait until the other hosts have left, or for some seconds."""
        await self._membership.wait_until_left(_LEAVE_SECONDS)

    async def _wait_for_reports(self, names: Mapping[str, str]) -> GenerationEnd:
        """Wait until all hosts have ended the generation, or are lost. `names`: of the hosts."""
        lost: list[str] = []
        updates = self.updates()
        while True:
            # A host may have been lost before its ranks were assigned.
            gone = [host for host in names if host not in self._membership.present and host not in self._reports]
            if len(gone) > len(lost):
                lost = gone
                await self._member.declare_broken(self._generation)
            if all(host in self._reports or host in lost for host in names):
                break
            await updates.wait()
        generation, why = self._regroup
        return GenerationEnd(
            reports=[(names[host], self._reports[host]) for host in names if host in self._reports],
            lost=[names[host] for host in lost if host not in self._reports],
            broken_at=self._member.broken_at,
            regroup=why if generation == self._generation else "",
        )

    def _on_report(self, host: str, change: Change) -> None:
        if change.value is not None:
            report = from_json(HostReport, change.value.encode(), f"report of host {host}")
            if report.generation == self._generation:
                self._reports[host] = report


def assignments(
    generation: Generation, work: str, placement: Placement, members: Mapping[str, HostRegistration]
) -> list[tuple[str, HostAssignment]]:
    """What each host of a placement is assigned. Each keeps copies of the snapshots of the host before it."""
    found: list[tuple[str, HostAssignment]] = []
    first = 0
    for index, (host, ranks) in enumerate(placement):
        following = members[placement[(index + 1) % len(placement)][0]]
        partner = replace(generation.store, host=following.address, port=following.snapshot_port)
        assigned = HostAssignment(
            generation=generation,
            work=work,
            first_rank=first,
            ranks=ranks,
            partner=partner if len(placement) > 1 else None,
        )
        found.append((host, assigned))
        first += ranks
    return found


def end_of(error: OnecurveError) -> RunEnd:
    """How a run ended that this error has ended."""
    if isinstance(error, InterruptError):
        return RunEnd(error=str(error), stopped=error.signal)
    is_input_error = error.is_input_error if isinstance(error, RankFailedError) else True
    return RunEnd(error=str(error), is_input_error=is_input_error)
