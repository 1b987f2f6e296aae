"""The leader of a run: waits for the hosts, has the job planned, assigns ranks, and decides how the run ends."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.entry import Change
from onecurve.describe.assignment import RankFailure
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.host import HostAssignment, HostRegistration, HostReport, RunEnd
from onecurve.describe.plan import Plan
from onecurve.launch.failure import first_failure
from onecurve.launch.host_ranks import is_cause

HOSTS, ASSIGNMENTS, REPORTS, END = "hosts/", "assignments/", "reports/", "end"
_CAUSE_SECONDS = 5.0
"""How long a failure that may follow from another one waits for that one."""
_SAY_SECONDS = 10.0
"""How often it is said which hosts are missing."""


@dataclass(frozen=True)
class RunPlan:
    """How the ranks are distributed, and how they split the job."""

    ranks_per_host: Sequence[int]
    """In the order of the hosts."""
    plan: Plan | None
    predicted: dict[str, float]


Replan = Callable[[Sequence[HostRegistration]], RunPlan]
"""The hosts, in the order of their ranks → the plan for them."""


class Leader:
    """One host is the leader of a run. Its own ranks come first, so that rank 0 is here."""

    def __init__(self, coordination: Coordination, host: str, hosts: int, say: Callable[[str], None]) -> None:
        """`host`: key of this host. `hosts`: number of hosts to wait for."""
        self._coordination, self._host, self._count, self._say = coordination, host, hosts, say
        self._registrations: dict[str, HostRegistration] = {}
        self._reports: dict[str, HostReport] = {}
        self._news = asyncio.Event()

    async def run(self, replan: Replan, store_host: str, store_port: int) -> RunEnd:
        """Lead one generation; return how it ended, after telling the other hosts."""
        tasks = [
            asyncio.create_task(self._follow(HOSTS, self._on_host)),
            asyncio.create_task(self._follow(f"{REPORTS}1/", self._on_report)),
        ]
        try:
            end = await self._lead(replan, store_host, store_port)
        except OnecurveError as error:
            end = RunEnd(error=str(error), is_input_error=True)
        finally:
            for task in tasks:
                task.cancel()
        await self._coordination.create(END, to_json(end))
        return end

    async def _lead(self, replan: Replan, store_host: str, store_port: int) -> RunEnd:
        await self._wait_for_hosts()
        members = [self._host, *sorted(host for host in self._registrations if host != self._host)]
        registrations = [self._registrations[host] for host in members]
        for other in registrations[1:]:
            refuse_different(registrations[0], other)
        chosen = await asyncio.to_thread(replan, registrations)
        size, first = sum(chosen.ranks_per_host), 0
        for host, ranks in zip(members, chosen.ranks_per_host, strict=True):
            assignment = HostAssignment(
                generation=1,
                first_rank=first,
                ranks=ranks,
                size=size,
                store_host=store_host,
                store_port=store_port,
                plan=chosen.plan,
                predicted=chosen.predicted,
            )
            await self._coordination.put(f"{ASSIGNMENTS}{host}", to_json(assignment))
            first += ranks
        return await self._wait_for_reports(members)

    async def _wait_for_hosts(self) -> None:
        while len(self._registrations) < self._count:
            try:
                await asyncio.wait_for(self._change(), _SAY_SECONDS)
            except TimeoutError:
                present = ", ".join(sorted(registration.name for registration in self._registrations.values()))
                self._say(f"waiting for hosts: {len(self._registrations)} of {self._count} are here ({present})")

    async def _wait_for_reports(self, members: Sequence[str]) -> RunEnd:
        names = {host: self._registrations[host].name for host in members}
        deadline: float | None = None
        loop = asyncio.get_running_loop()
        while True:
            lost = [host for host in members if host not in self._registrations and host not in self._reports]
            failures = [failure for report in self._reports.values() for failure in report.failures]
            stopped = next((report.stopped for report in self._reports.values() if report.stopped), None)
            if lost:
                return RunEnd(
                    error=f"host {names[lost[0]]} is lost: it no longer answers, or onecurve was killed there"
                )
            if failures and (any(map(is_cause, failures)) or len(self._reports) == len(members)):
                return _failed(failures)
            if stopped is not None:
                return RunEnd(stopped=stopped)
            if len(self._reports) == len(members):
                return RunEnd(result=next((r.result for r in self._reports.values() if r.result is not None), None))
            if failures and deadline is None:
                deadline = loop.time() + _CAUSE_SECONDS
            try:
                await asyncio.wait_for(self._change(), None if deadline is None else max(deadline - loop.time(), 0))
            except TimeoutError:
                return _failed(failures)

    async def _change(self) -> None:
        await self._news.wait()
        self._news.clear()

    async def _follow(self, prefix: str, take: Callable[[str, Change], None]) -> None:
        async for changes in await self._coordination.watch(prefix):
            for change in changes:
                take(change.key.removeprefix(prefix), change)
            self._news.set()

    def _on_host(self, host: str, change: Change) -> None:
        if change.value is None:
            self._registrations.pop(host, None)
        else:
            self._registrations[host] = from_json(HostRegistration, change.value.encode(), f"host {host}")

    def _on_report(self, host: str, change: Change) -> None:
        if change.value is not None:
            self._reports[host] = from_json(HostReport, change.value.encode(), f"report of host {host}")


def _failed(failures: Sequence[RankFailure]) -> RunEnd:
    error = first_failure(failures)
    return RunEnd(error=str(error), is_input_error=error.is_input_error)


def refuse_different(mine: HostRegistration, other: HostRegistration) -> None:
    """Raise OnecurveError, naming both sides, if a host has other versions or another job."""
    for what, ours, theirs in (("", mine.versions, other.versions), ("its job's ", mine.job, other.job)):
        for name in {**ours, **theirs}:
            if ours.get(name) != theirs.get(name):
                raise OnecurveError(
                    f"host {other.name} ({other.address}) does not fit: {what}{name} is {theirs.get(name)!r} there and "
                    f"{ours.get(name)!r} on host {mine.name} ({mine.address}); use the same on every host"
                )
