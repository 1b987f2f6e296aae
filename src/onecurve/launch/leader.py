"""The leader of a run: waits for the hosts, has generations run on them, and tells all how the run ended."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.entry import Change
from onecurve.coordination.lease import Lease
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import InterruptError, OnecurveError
from onecurve.describe.host import HostAssignment, HostRange, HostRegistration, HostReport, RunEnd
from onecurve.describe.plan import Plan
from onecurve.launch.event_loop import first_to_end
from onecurve.launch.failure import CAUSE_SECONDS, RankFailedError, first_failure, is_cause
from onecurve.launch.member import Member
from onecurve.launch.run_keys import RunKeys
from onecurve.launch.store import served_store

T = TypeVar("T")

_SAY_SECONDS = 10.0
"""How often it is said how many hosts are missing."""
_GATHER_SECONDS = 10.0
"""Once there are enough hosts, the run begins when no further one has joined for this time."""
_LEAVE_SECONDS = 10.0
"""The other hosts have read how the run ended, and left, within this time."""

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
        self._member, self._place, self._say = member, place, say
        self.host = member.host
        self._registrations: dict[str, HostRegistration] = {}
        self._members: Mapping[str, HostRegistration] = {}
        """The hosts that the run began with."""
        self._reports: dict[str, HostReport] = {}
        self._generation = 0
        self._news = asyncio.Event()
        self._failure: OnecurveError | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        self._follow(self._keys.hosts, self._on_host)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()

    async def wait_for_hosts(self, count: HostRange) -> Mapping[str, HostRegistration]:
        """Wait until enough hosts are here; return their registrations, the leader's own first.

        Raises OnecurveError, naming both sides, if a host has other versions or another job. Hosts that come later are
        turned away.
        """
        return await self.unless_stopped(self._wait_for_hosts(count))

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
                self._say(f"waiting for hosts in {self._place}: {len(present)} of {count} are here ({names})")
        while len(present) < count.most and await self._change_within(_GATHER_SECONDS):
            pass
        others = [host for host in present if host != self.host][: count.most - 1]
        others.sort(key=lambda host: present[host].name)
        self._members = {host: present[host] for host in (self.host, *others)}
        for other in others:
            refuse_different(present[self.host], present[other])
        for host in present.keys() - self._members.keys():
            self._turn_away(host)
        return self._members

    async def run(
        self, work: str, placement: Placement, plan: Plan | None = None, predicted: Mapping[str, float] | None = None
    ) -> str:
        """Run one generation; return the result of rank 0. `work`: what the ranks do, a verb of their program.

        Raises RankFailedError if a rank fails, OnecurveError if a host is lost, and InterruptError if a host has
        received a signal before the start. After a signal during the generation, the ranks end it by themselves.
        """
        if self._member.stopped.done():
            await self._raise_when_stopped()
        self._generation += 1
        self._reports.clear()
        self._follow(self._keys.reports(self._generation), self._on_report)
        async with served_store(self._members[self.host].address) as store:
            size, first = sum(ranks for _, ranks in placement), 0
            for host, ranks in placement:
                assigned = HostAssignment(
                    generation=self._generation,
                    work=work,
                    first_rank=first,
                    ranks=ranks,
                    size=size,
                    store=store,
                    plan=plan,
                    predicted=dict(predicted or {}),
                )
                await self._coordination.put(self._keys.assignment(host), to_json(assigned), self._lease)
                first += ranks
            return await self._wait_for_reports([host for host, _ in placement])

    async def end(self, end: RunEnd) -> None:
        """Tell all hosts how the run ended."""
        await self._coordination.put(self._keys.end, to_json(end), self._lease)

    async def wait_until_left(self) -> None:
        """Wait until the other hosts have left, or for some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                while self._registrations.keys() & self._members.keys() - {self.host}:
                    await self._change()

    async def _wait_for_reports(self, hosts: Sequence[str]) -> str:
        """Wait until all hosts have ended the generation; return what rank 0 returned."""
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while True:
            lost = [host for host in hosts if host not in self._registrations and host not in self._reports]
            failures = [failure for report in self._reports.values() for failure in report.failures]
            is_complete = len(self._reports) == len(hosts)
            if lost:
                name = self._members[lost[0]].name
                raise OnecurveError(f"host {name} is lost: it no longer answers, or onecurve was killed there")
            if failures and (is_complete or any(map(is_cause, failures))):
                raise first_failure(failures)
            if is_complete:
                return next(report.result for report in self._reports.values() if report.result is not None)
            if failures and deadline is None:
                deadline = loop.time() + CAUSE_SECONDS
            if not await self._change_within(None if deadline is None else deadline - loop.time()):
                raise first_failure(failures)

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
        if self._members and host not in self._members:
            self._turn_away(host)

    def _on_report(self, host: str, change: Change) -> None:
        if change.value is not None:
            self._reports[host] = from_json(HostReport, change.value.encode(), f"report of host {host}")

    def _turn_away(self, host: str) -> None:
        names = ", ".join(member.name for member in self._members.values())
        late = HostAssignment(refusal=f"the run has begun without this host, on {names}; start it with more --hosts")

        async def refuse() -> None:
            with suppress(OnecurveError):  # then it is not needed either
                await self._coordination.put(self._keys.assignment(host), to_json(late), self._lease)

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
