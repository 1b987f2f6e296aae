"""The keeper of a host in a run of several hosts: it meets the others, leads the run or follows, and heeds signals."""

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace

from onecurve.coordination.lease import Lease
from onecurve.describe.errors import InterruptError, OnecurveError, SignalName
from onecurve.describe.host import HostAssignment, HostRegistration, RunEnd
from onecurve.hosts.leader import Leader, end_of
from onecurve.hosts.member import Member, RunOverError
from onecurve.hosts.rendezvous import Alone, Met, Rendezvous
from onecurve.hosts.run_keys import LEADER, RunKeys
from onecurve.hosts.snapshot_server import SnapshotServer, served_snapshots
from onecurve.launch.event_loop import stop_signals
from onecurve.launch.failure import RankFailedError
from onecurve.launch.stop import early_stop_text, stop_text
from onecurve.launch.template_process import TemplateProcess

_RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class KeptRun:
    """What a keeper is asked to run."""

    register: Callable[[str], Awaitable[HostRegistration]]
    """This host's address → what the other hosts must know about it."""
    conduct: Callable[[Leader], Awaitable[str]]
    """Called on the leading host: what is done on the hosts, and in the end the result of the run."""
    request: Callable[[HostAssignment], str]
    """Makes the request for this host's ranks."""
    say: Callable[[str], None]
    """Shows a short text to the user."""


def host_name() -> str:
    """The name of this host; of a Slurm node, whatever its host name is."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


class Keeper:
    """Keeps the ranks of this host."""

    def __init__(self, template: TemplateProcess, run: KeptRun) -> None:
        self._template, self._run = template, run
        self.leads = False
        """True if this host leads the run, and so has rank 0."""
        self._signals: list[SignalName] = []
        self._is_alone = False
        self._member: Member | None = None
        self._passing_on: asyncio.Task[None] | None = None

    async def keep(self, rendezvous: Rendezvous | Alone) -> RunEnd:
        """Take part in the run until it ends; return how it ended.

        The first signal ends the run on all hosts, after the step that their ranks are in. A second one, or one before
        this host has met the others, ends this host's part at once. So does Ctrl-C before the first step of a run on
        this host alone: a step that compiles takes minutes, and nothing is lost.
        """
        work = asyncio.ensure_future(self._meet(rendezvous))

        def on_signal(name: SignalName) -> None:
            self._signals.append(name)
            if len(self._signals) > 1 or self._member is None:
                work.cancel()
            elif name == "SIGINT" and self._is_alone and not self._member.has_begun:
                self._run.say(early_stop_text(name))
                work.cancel()
            else:
                self._run.say(stop_text(name))
                self._passing_on = asyncio.ensure_future(self._member.stop(name))

        with stop_signals(on_signal):
            try:
                return await work
            except asyncio.CancelledError:
                if not self._signals:
                    raise
                return RunEnd(stopped=self._signals[0])

    async def _meet(self, rendezvous: Rendezvous | Alone) -> RunEnd:
        async with AsyncExitStack() as stack:
            met = await stack.enter_async_context(rendezvous.meet())
            self._is_alone = met.is_alone
            registration = await self._run.register(met.address)
            server = None
            if not met.is_alone:
                server = await stack.enter_async_context(served_snapshots(met.address))
                registration = replace(registration, snapshot_port=server.port)
            lease = await met.coordination.lease(met.lease_seconds)
            try:
                return await self._take_part_in_next(met, lease, registration, server)
            finally:
                self._member = None
                await lease.close()

    async def _take_part_in_next(
        self, met: Met, lease: Lease, registration: HostRegistration, server: SnapshotServer | None
    ) -> RunEnd:
        """Take part in the run, or in the next one if it is over already."""
        said: set[str] = set()
        while True:
            try:
                return await self._take_part(met, lease, registration, server)
            except RunOverError as error:
                self._member = None
                if self._signals:
                    return RunEnd(stopped=self._signals[0])
                if str(error) not in said:
                    self._run.say(f"waiting: {error}")
                    said.add(str(error))
                await asyncio.sleep(_RETRY_SECONDS)

    async def _take_part(
        self, met: Met, lease: Lease, registration: HostRegistration, server: SnapshotServer | None
    ) -> RunEnd:
        coordination, name = met.coordination, secrets.token_hex(8)
        self.leads = met.may_lead and await coordination.create(LEADER, name, lease)
        keys = RunKeys(name if self.leads else await _run_to_join(met))
        host = f"{registration.name}-{secrets.token_hex(4)}"
        member = Member(coordination, lease, keys, host, registration, self._template, server)
        self._member = member
        if not self.leads:
            self._run.say(f"joined the run in {met.place}; the leading host shows its progress")

        with ExitStack() as stack:
            leaders: list[Leader] = []

            async def lead() -> RunEnd:
                leader = Leader(coordination, lease, keys, member, met.place, self._run.say)
                leaders.append(stack.enter_context(leader))
                return await _lead(leader, self._run.conduct)

            async def succeed() -> RunEnd | None:
                self.leads = await coordination.create(LEADER, keys.run, lease)
                if not self.leads:
                    return None
                self._run.say("the host that led the run is lost; this host leads it now")
                return await lead()

            end = await member.take_part(
                self._run.request,
                self._run.say,
                lead=lead if self.leads else None,
                succeed=succeed if met.may_lead else None,
            )
            for leader in leaders:
                await leader.wait_until_left()
            return end


async def _run_to_join(met: Met) -> str:
    """The name of the run that another host leads."""
    if met.may_lead:
        entry = await met.coordination.get(LEADER)
        if entry is None:
            raise RunOverError("the host that led the run has just left")
        return entry.value
    watch = await met.coordination.watch(LEADER)
    try:
        async for changes in watch:
            for change in changes:
                if change.value is not None:
                    return change.value
    finally:
        watch.close()
    raise OnecurveError("the connection to the other hosts was closed")


async def _lead(leader: Leader, conduct: Callable[[Leader], Awaitable[str]]) -> RunEnd:
    """Conduct the run, tell all hosts how it ended, and return it."""
    try:
        end = RunEnd(result=await conduct(leader))
    except OnecurveError as error:
        end = end_of(error)
    await leader.end(end)
    return end


def result_of(end: RunEnd) -> str:
    """Return what rank 0 returned; raise the error that ended the run."""
    if end.result is not None:
        return end.result
    if end.stopped is not None:
        raise InterruptError(end.error or "interrupted; earlier checkpoints are unchanged", end.stopped)
    error = RankFailedError(end.error)
    error.is_input_error = end.is_input_error
    raise error
