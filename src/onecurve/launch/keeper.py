"""The keeper of a host in a run of several hosts: it registers, follows its assignment, and reports how that ended."""

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from onecurve.coordination.coordination import Coordination
from onecurve.describe.assignment import Assignment
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import InterruptError, OnecurveError, SignalName
from onecurve.describe.host import HostAssignment, HostRegistration, HostReport, RunEnd
from onecurve.launch.event_loop import stop_signals
from onecurve.launch.failure import RankFailedError
from onecurve.launch.host_ranks import HostRanks, RanksFailedError
from onecurve.launch.leader import ASSIGNMENTS, END, HOSTS, REPORTS, Leader, Replan
from onecurve.launch.network import device_of
from onecurve.launch.stop import STOP_SIGNALS
from onecurve.launch.template_process import TemplateProcess

_LEASE_SECONDS = 4.5
"""A host that does not answer for this time is lost."""
_LEADER, _STOP = "leader", "stop"


@dataclass(frozen=True)
class KeptRun:
    """What a keeper is asked to run."""

    verb: str
    request: Callable[[dict[str, float]], str]
    """The predicted seconds of a step → the request for the ranks."""
    hosts: int
    """Number of hosts of the run."""
    replan: Replan


def host_name() -> str:
    """The name of this host; of a Slurm node, whatever its host name is."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


class Keeper:
    """Keeps the ranks of this host."""

    def __init__(
        self,
        coordination: Coordination,
        template: TemplateProcess,
        registration: HostRegistration,
        run: KeptRun,
        say: Callable[[str], None],
    ) -> None:
        self._coordination, self._template, self._registration = coordination, template, registration
        self._run, self._say = run, say
        self._key = f"{registration.name}-{secrets.token_hex(4)}"
        self._signals: list[SignalName] = []
        self._ranks: HostRanks | None = None
        self._work: asyncio.Task[RunEnd] | None = None
        self._telling: asyncio.Task[bool] | None = None
        self._stop_signal: SignalName | None = None

    async def keep(self) -> RunEnd:
        """Take part in the run until it ends; return how it ended.

        The first signal lets all ranks of all hosts finish their step and end, a second one kills those of this host.
        """
        self._work = asyncio.create_task(self._keep())
        with stop_signals(self._on_signal):
            try:
                return await self._work
            except asyncio.CancelledError:
                if not self._signals:
                    raise
                return RunEnd(stopped=self._signals[0])

    async def _keep(self) -> RunEnd:
        lease = await self._coordination.lease(_LEASE_SECONDS)
        try:
            is_leader = await self._coordination.create(_LEADER, self._key, lease)
            await self._coordination.put(f"{HOSTS}{self._key}", to_json(self._registration), lease)
            with socket.create_server((self._registration.address, 0)) as listener:
                leading = asyncio.create_task(self._lead(listener)) if is_leader else None
                following = asyncio.create_task(self._follow(listener if is_leader else None))
                ended = asyncio.create_task(self._ended())
                stopping = asyncio.create_task(self._pass_on_stop())
                lost = asyncio.create_task(lease.lost.wait())
                try:
                    await asyncio.wait({ended, lost}, return_when=asyncio.FIRST_COMPLETED)
                    if not ended.done():
                        raise OnecurveError(
                            f"host {self._registration.name} has lost the connection to the other hosts of the run"
                        )
                    end = ended.result()
                    if end.result is not None:  # rank 0 may wait for others to leave the group
                        with suppress(TimeoutError):
                            await asyncio.wait_for(asyncio.shield(following), _LEASE_SECONDS)
                    return end
                finally:
                    for task in filter(None, (leading, following, ended, stopping, lost)):
                        task.cancel()
                    await asyncio.gather(*filter(None, (leading, following)), return_exceptions=True)
        finally:
            await lease.close()

    async def _lead(self, listener: socket.socket) -> RunEnd:
        leader = Leader(self._coordination, self._key, self._run.hosts, self._say)
        host, port = listener.getsockname()[:2]
        return await leader.run(self._run.replan, host, port)

    async def _ended(self) -> RunEnd:
        """Wait until the leader has said how the run ended."""
        async for changes in await self._coordination.watch(END):
            for change in changes:
                if change.key == END and change.value is not None:
                    return from_json(RunEnd, change.value.encode(), "the end of the run")
        raise OnecurveError("the connection to the leader was closed")

    async def _follow(self, listener: socket.socket | None) -> None:
        """Wait for the assignment of this host, run its ranks and report how they ended."""
        assigned = await self._assignment()
        if not assigned.ranks:
            await self._report(HostReport())
            return
        with HostRanks(self._template) as ranks:
            self._ranks = ranks
            await ranks.start(assigned.ranks, self._run.verb, self._run.request(assigned.predicted), self._say)
            if self._stop_signal is not None:
                ranks.stop(self._stop_signal)
            try:
                results = await ranks.run(self._assignments(assigned), listener.fileno() if listener else None)
            except RanksFailedError as error:
                await self._report(HostReport(failures=tuple(error.failures)))
                return
            await self._report(HostReport(result=results[0] if assigned.first_rank == 0 else None))
            await self._ended()
            await ranks.dismiss()

    async def _assignment(self) -> HostAssignment:
        key = f"{ASSIGNMENTS}{self._key}"
        async for changes in await self._coordination.watch(key):
            for change in changes:
                if change.key == key and change.value is not None:
                    return from_json(HostAssignment, change.value.encode(), "assignment")
        raise OnecurveError("the connection to the leader was closed")

    def _assignments(self, assigned: HostAssignment) -> list[Assignment]:
        return [
            Assignment(
                generation=assigned.generation,
                rank=assigned.first_rank + local_rank,
                size=assigned.size,
                local_rank=local_rank,
                local_size=assigned.ranks,
                store_host=assigned.store_host,
                store_port=assigned.store_port,
                interface=device_of(self._registration.address),
                plan=assigned.plan,
            )
            for local_rank in range(assigned.ranks)
        ]

    async def _report(self, report: HostReport) -> None:
        await self._coordination.put(f"{REPORTS}1/{self._key}", to_json(report))

    async def _pass_on_stop(self) -> None:
        """Ask this host's ranks to stop when any host of the run has received a signal."""
        async for changes in await self._coordination.watch(_STOP):
            for change in changes:
                if change.value is not None:
                    self._stop_signal = STOP_SIGNALS[signal.Signals[change.value]]
                    if self._ranks is not None:
                        self._ranks.stop(self._stop_signal)

    def _on_signal(self, name: SignalName) -> None:
        self._signals.append(name)
        if len(self._signals) == 1 and self._ranks is not None:
            self._telling = asyncio.create_task(self._coordination.create(_STOP, name))
        elif self._work is not None:
            self._work.cancel()


def result_of(end: RunEnd) -> str | None:
    """Return what rank 0 returned; raise the error that ended the run."""
    if end.error:
        error = RankFailedError(end.error)
        error.is_input_error = end.is_input_error
        raise error
    if end.stopped is not None:
        raise InterruptError(
            "interrupted before the ranks could finish; earlier checkpoints are unchanged", end.stopped
        )
    return end.result
