"""The leader of a run: waits for the hosts, has generations run on them, and tells all how the run ended."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.entry import Change
from onecurve.coordination.lease import Lease
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import InterruptError, OnecurveError, SignalName
from onecurve.describe.generation import Generation, Interruption, StoreAddress
from onecurve.describe.host import HostAssignment, HostRange, HostRegistration, HostReport, RunEnd
from onecurve.describe.plan import Plan
from onecurve.hosts.generation_end import GenerationEnd
from onecurve.hosts.member import Member
from onecurve.hosts.run_keys import RunKeys
from onecurve.launch.event_loop import first_to_end
from onecurve.launch.failure import RankFailedError
from onecurve.launch.store import served_store

T = TypeVar("T")

_SAY_SECONDS = 10.0
"""How often it is said how many hosts are missing."""
_GATHER_SECONDS = 10.0
"""Once there are enough hosts, the run begins when no further one has joined for this time."""
_LEAVE_SECONDS = 10.0
"""The other hosts have read how the run ended, and left, within this time."""

_TURN_AWAY_SECONDS = 6.0
"""A host may come in place of another one before the loss of that one is known, which takes as long as a lease."""

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
        self._registrations: dict[str, HostRegistration] = {}
        self._members: Mapping[str, HostRegistration] = {}
        """The hosts that the run has."""
        self._most = 0
        """How many it may have."""
        self._reports: dict[str, HostReport] = {}
        self._generation = 0
        self._news = asyncio.Event()
        self._failure: OnecurveError | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        self._follow(self._keys.hosts, self._on_host)
        self._follow(self._keys.reports, self._on_report)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()

    @property
    def next_generation(self) -> int:
        """Number of the next generation."""
        return self._generation + 1

    @property
    def hosts(self) -> int:
        """Number of hosts that are here."""
        return len(self._registrations)

    @property
    def stopped_by(self) -> SignalName | None:
        """The signal that a host of the run has received; None if none has."""
        return self._member.stopped.result() if self._member.stopped.done() else None

    async def wait_for_hosts(self, count: HostRange, seconds: float | None = None) -> Mapping[str, HostRegistration]:
        """Wait until enough hosts are here; return their registrations, the leader's own first.

        Raises OnecurveError, naming both sides, if a host has other versions or another job, and InterruptError if
        there are not enough hosts after `seconds`. Hosts that come later wait until the run has lost one, or are turned
        away if it has as many as it may.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self.unless_stopped(self._wait_for_hosts(count))
        except TimeoutError:
            raise InterruptError(
                f"there are not enough hosts after {seconds:.0f} s; started again, the run continues", "SIGTERM"
            ) from None

    async def unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raises InterruptError as soon as a host of the run has received a signal."""
        return await first_to_end(work, self._raise_when_stopped())

    async def _raise_when_stopped(self) -> NoReturn:
        name = await asyncio.shield(self._member.stopped)
        raise InterruptError("interrupted before training; earlier checkpoints are unchanged", name)

    async def _wait_for_hosts(self, count: HostRange) -> Mapping[str, HostRegistration]:
        present = self._registrations
        while len(present) < count.least or self.host not in present:
            if not await self._change_within(_SAY_SECONDS):
                names = ", ".join(sorted(registration.name for registration in present.values()))
                self.say(f"waiting for hosts in {self._place}: {len(present)} of {count} are here ({names})")
        while not self._members and len(present) < count.most and await self._change_within(_GATHER_SECONDS):
            pass
        self._most = count.most
        others = [host for host in present if host != self.host][: count.most - 1]
        others.sort(key=lambda host: present[host].name)
        self._members = {host: present[host] for host in (self.host, *others)}
        for other in others:
            refuse_different(present[self.host], present[other])
        for host in present.keys() - self._members.keys():
            self._turn_away(host)
        return self._members

    async def run(self, work: str, placement: Placement) -> str:
        """Have ranks do something, in a generation of its own; return the result of rank 0.

        Raises RankFailedError if a rank fails, OnecurveError if a host is lost, and InterruptError if a host has
        received a signal before the start.
        """
        end = await self.run_generation(work, placement)
        if end.result is None:
            raise end.error()
        return end.result

    async def run_generation(
        self,
        work: str,
        placement: Placement,
        plan: Plan | None = None,
        predicted: Mapping[str, float] | None = None,
        interruption: Interruption | None = None,
    ) -> GenerationEnd:
        """Run one generation, and return how it ended; all ranks that live have left it then.

        `work`: what the ranks do, a verb of their program. `interruption`: what ended the generation before. Raises
        InterruptError if a host has received a signal before the start. After a signal during the generation, the
        ranks end it by themselves.
        """
        if self.stopped_by is not None:
            await self._raise_when_stopped()
        self._generation += 1
        self._reports.clear()
        async with served_store(self._members[self.host].address) as store:
            generation = Generation(
                number=self._generation,
                size=sum(ranks for _, ranks in placement),
                hosts=len(placement),
                store=store,
                plan=plan,
                predicted=dict(predicted or {}),
                interruption=interruption,
            )
            first = 0
            for index, (host, ranks) in enumerate(placement):
                assigned = HostAssignment(
                    generation=generation,
                    work=work,
                    first_rank=first,
                    ranks=ranks,
                    partner=self._partner(placement, index, store),
                )
                await self._coordination.put(self._keys.assignment(host), to_json(assigned), self._lease)
                first += ranks
            return await self._wait_for_reports(placement)

    def _partner(self, placement: Placement, index: int, store: StoreAddress) -> StoreAddress | None:
        """The host that keeps copies of a host's snapshots: the next one, so that each keeps those of one other."""
        if len(placement) == 1:
            return None
        partner = self._members[placement[(index + 1) % len(placement)][0]]
        return replace(store, host=partner.address, port=partner.snapshot_port)

    async def end(self, end: RunEnd) -> None:
        """Tell all hosts how the run ended."""
        await self._coordination.put(self._keys.end, to_json(end), self._lease)

    async def wait_until_left(self) -> None:
        """Wait until the other hosts have left, or for some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                while self._registrations.keys() & self._members.keys() - {self.host}:
                    await self._change()

    async def _wait_for_reports(self, placement: Placement) -> GenerationEnd:
        """Wait until all hosts have ended the generation, or are lost."""
        hosts = [host for host, _ in placement]
        lost: list[str] = []
        while any(host not in self._reports and host not in lost for host in hosts):
            await self._change()
            gone = [host for host in hosts if host not in self._registrations and host not in self._reports]
            if len(gone) > len(lost):
                lost = gone
                await self._member.declare_broken(self._generation)
        names = {host: self._members[host].name for host in hosts}
        return GenerationEnd(
            reports=[(names[host], self._reports[host]) for host in hosts if host in self._reports],
            lost=[names[host] for host in lost if host not in self._reports],
            broken_at=self._member.broken_at,
        )

    async def _change_within(self, seconds: float | None) -> bool:
        """Wait for news of a host; return False if there are none for this time."""
        try:
            await asyncio.wait_for(self._change(), seconds)
        except TimeoutError:
            return False
        return True

    async def _change(self) -> None:
        """Wait for news of a host."""
        await self._news.wait()
        self._news.clear()
        if self._failure is not None:
            raise self._failure

    def _follow(self, prefix: str, take: Callable[[str, Change], None]) -> None:
        """Take in what is written under a prefix, in the background."""

        async def follow() -> None:
            try:
                async for changes in await self._coordination.watch(prefix):
                    for change in changes:
                        take(change.key.removeprefix(prefix), change)
                    self._news.set()
            except OnecurveError as error:  # not readable, as from another version, or the service is gone
                self._failure = error
                self._news.set()

        self._tasks.append(asyncio.create_task(follow()))

    def _on_host(self, host: str, change: Change) -> None:
        if change.value is None:
            self._registrations.pop(host, None)
            return
        self._registrations[host] = from_json(HostRegistration, change.value.encode(), f"host {host}")
        if self._members and host not in self._members and len(self._members) == self._most:
            self._turn_away(host, _TURN_AWAY_SECONDS)

    def _on_report(self, host: str, change: Change) -> None:
        if change.value is not None:
            report = from_json(HostReport, change.value.encode(), f"report of host {host}")
            if report.generation == self._generation:
                self._reports[host] = report

    def _turn_away(self, host: str, seconds: float = 0.0) -> None:
        """Refuse a host that the run does not need, after some seconds."""

        async def refuse() -> None:
            await asyncio.sleep(seconds)
            if host in self._members or len(self._members.keys() & self._registrations.keys()) < self._most:
                return
            names = ", ".join(member.name for member in self._members.values())
            text = f"the run has begun without this host, on {names}; start it with more --hosts"
            with suppress(OnecurveError):  # then it is not needed either
                assigned = HostAssignment(refusal=text)
                await self._coordination.put(self._keys.assignment(host), to_json(assigned), self._lease)

        self._tasks.append(asyncio.create_task(refuse()))


def refuse_different(mine: HostRegistration, other: HostRegistration) -> None:
    """Raise OnecurveError, naming both sides, if a host has other versions or another job."""
    for what, ours, theirs in (("", mine.versions, other.versions), ("its job's ", mine.job, other.job)):
        for name in {**ours, **theirs}:
            if ours.get(name) != theirs.get(name):
                raise OnecurveError(
                    f"host {other.name} ({other.address}) does not fit: {what}{name} is {theirs.get(name)!r} there and "
                    f"{ours.get(name)!r} on host {mine.name} ({mine.address}); use the same on every host"
                )


def end_of(error: OnecurveError) -> RunEnd:
    """How a run ended that this error has ended."""
    if isinstance(error, InterruptError):
        return RunEnd(error=str(error), stopped=error.signal)
    is_input_error = error.is_input_error if isinstance(error, RankFailedError) else True
    return RunEnd(error=str(error), is_input_error=is_input_error)
