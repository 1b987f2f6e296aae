"""A host as a member of a run: it has ranks while it is assigned work, and hears how the run ends."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import NoReturn

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.lease import Lease
from onecurve.coordination.watch import Watch
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import OnecurveError, SignalName
from onecurve.describe.host import HostAssignment, HostRegistration, HostReport, RunEnd
from onecurve.launch.event_loop import first_to_end
from onecurve.launch.host_ranks import HostRanks, RanksFailedError
from onecurve.launch.network import device_of
from onecurve.launch.run_keys import LEADER, RunKeys
from onecurve.launch.stop import STOP_SIGNALS
from onecurve.launch.template_process import TemplateProcess


class RunOverError(OnecurveError):
    """The run is over, or its leader is gone, before this host was assigned anything."""


class Member:
    """This host in one run. Its key in the coordination service is `host`."""

    def __init__(
        self,
        coordination: Coordination,
        lease: Lease,
        keys: RunKeys,
        host: str,
        registration: HostRegistration,
        template: TemplateProcess,
    ) -> None:
        self._coordination, self._lease, self._keys = coordination, lease, keys
        self.host = host
        self._registration, self._template = registration, template
        self._ranks: HostRanks | None = None
        self._is_assigned = False
        self.stopped: asyncio.Future[SignalName] = asyncio.get_running_loop().create_future()
        """Done when a host of the run has received a signal, which is the result."""

    async def take_part(
        self,
        request: Callable[[HostAssignment], str],
        say: Callable[[str], None],
        lead: Callable[[], Awaitable[RunEnd]] | None,
    ) -> RunEnd:
        """Do what the leader assigns until the run ends; return how it ended.

        `request`: makes the request for the ranks. `lead`: leads the run, if this host does, and returns how it ended.
        """
        notices = await self._coordination.watch(self._keys.notices)
        if any(change.key == self._keys.end for change in await anext(notices)):
            raise RunOverError("an earlier run of this name has not ended completely")
        await self._coordination.put(f"{self._keys.hosts}{self.host}", to_json(self._registration), self._lease)
        try:
            end = await first_to_end(
                self._heed(notices, is_leader=lead is not None),
                self._work(request, say),
                self._notice_loss(),
                lead() if lead is not None else self._notice_leader_loss(),
            )
            if end.result is not None:
                await self._dismiss()
            return end
        finally:
            if self._ranks is not None:
                self._ranks.close()

    async def stop(self, name: SignalName) -> None:
        """Ask the ranks of all hosts to finish their step and end."""
        await self._coordination.create(self._keys.stop, name, self._lease)

    async def _heed(self, notices: Watch, is_leader: bool) -> RunEnd:
        """Pass a stop on to this host's ranks; return when the leader says how the run ended."""
        async for changes in notices:
            for change in changes:
                if change.value is None:
                    continue
                if change.key == self._keys.stop:
                    name = STOP_SIGNALS[signal.Signals[change.value]]
                    if not self.stopped.done():
                        self.stopped.set_result(name)
                    if self._ranks is not None:
                        self._ranks.stop(name)
                elif not is_leader:  # the leader knows it
                    return from_json(RunEnd, change.value.encode(), "the end of the run")
        raise OnecurveError("the connection to the other hosts was closed")

    async def _work(self, request: Callable[[HostAssignment], str], say: Callable[[str], None]) -> NoReturn:
        """Run the ranks of one generation after the other."""
        async for changes in await self._coordination.watch(self._keys.assignment(self.host)):
            for change in changes:
                if change.value is None:
                    continue
                assigned = from_json(HostAssignment, change.value.encode(), "assignment")
                if assigned.refusal:
                    raise OnecurveError(assigned.refusal)
                self._is_assigned = True
                report = await self._run(assigned, request(assigned), say)
                key = f"{self._keys.reports(assigned.generation)}{self.host}"
                await self._coordination.put(key, to_json(report), self._lease)
        raise OnecurveError("the connection to the other hosts was closed")

    async def _run(self, assigned: HostAssignment, request: str, say: Callable[[str], None]) -> HostReport:
        """Run one generation. The ranks live on afterwards: others may still need them to leave the process group."""
        await self._dismiss()
        self._ranks = HostRanks(self._template)
        await self._ranks.start(assigned.ranks, assigned.work, request, say)
        if self.stopped.done():
            self._ranks.stop(self.stopped.result())
        has_first = assigned.first_rank == 0
        assignments = assigned.of_ranks(device_of(self._registration.address))
        try:
            results = await self._ranks.run(assignments)
        except RanksFailedError as error:
            return HostReport(failures=tuple(error.failures))
        return HostReport(result=results[0] if has_first else None)

    async def _dismiss(self) -> None:
        """Let the ranks of the last generation end."""
        if self._ranks is not None:
            await self._ranks.dismiss()
            self._ranks.close()
            self._ranks = None

    async def _notice_loss(self) -> NoReturn:
        await self._lease.lost.wait()
        raise OnecurveError(f"host {self._registration.name} has lost the connection to the other hosts of the run")

    async def _notice_leader_loss(self) -> RunEnd:
        """Wait until the leader has gone; return how the run ended, if it has said it."""
        is_first = True
        async for changes in await self._coordination.watch(LEADER):
            if any(change.value != self._keys.run for change in changes) or (is_first and not changes):
                entry = await self._coordination.get(self._keys.end)
                if entry is not None:
                    return from_json(RunEnd, entry.value.encode(), "the end of the run")
                break
            is_first = False
        error = "the host that led the run is lost: it no longer answers, or onecurve was killed there"
        raise OnecurveError(error) if self._is_assigned else RunOverError(error)
