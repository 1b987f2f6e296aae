"""A host as a member of a run: it has ranks while it is assigned work, and hears how the run ends."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NoReturn

from onecurve.coordination.coordination import Coordination
from onecurve.coordination.lease import Lease
from onecurve.coordination.watch import Watch
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import InterruptError, OnecurveError, SignalName
from onecurve.describe.host import GivenUpRank, HostAssignment, HostRegistration, HostReport, RunEnd
from onecurve.device.network import device_of
from onecurve.hosts.rank_notes import RankNotes
from onecurve.hosts.run_keys import LEADER, RunKeys
from onecurve.hosts.snapshot_server import SnapshotServer
from onecurve.launch.event_loop import first_to_end
from onecurve.launch.host_ranks import HostRanks, RanksFailedError
from onecurve.launch.snapshot_sender import SnapshotSender
from onecurve.launch.snapshots import Snapshots
from onecurve.launch.stop import STOP_SIGNALS
from onecurve.launch.template_process import TemplateProcess


class RunOverError(OnecurveError):
    """The run is over, or its leader is gone, before this host was assigned anything."""


class _BrokenError(Exception):
    """The generation cannot go on."""


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
        server: SnapshotServer | None,
    ) -> None:
        """`server`: serves this host's snapshots to others; None if there are none."""
        self._server = server
        self._snapshots = server.snapshots if server is not None else Snapshots()
        self._coordination, self._lease, self._keys = coordination, lease, keys
        self.host = host
        self._registration, self._template = registration, template
        self._ranks: HostRanks | None = None
        self._leads = False
        self.assigned: HostAssignment | None = None
        """The newest that this host was assigned; None if there is none."""
        self._broken = asyncio.Condition()
        self._broken_generation = 0
        """The newest generation that all hosts were told to leave."""
        self.broken_at = 0.0
        """When this host was told, in seconds since the epoch."""
        self.stopped: asyncio.Future[SignalName] = asyncio.get_running_loop().create_future()
        """Done when a host of the run has received a signal, which is the result."""

    async def take_part(
        self,
        request: Callable[[HostAssignment], str],
        say: Callable[[str], None],
        lead: Callable[[], Awaitable[RunEnd]] | None,
        succeed: Callable[[], Awaitable[RunEnd | None]] | None,
    ) -> RunEnd:
        """Do what the leader assigns until the run ends; return how it ended.

        `request`: makes the request for the ranks. `lead`: leads the run, if this host does, and returns how it ended.
        `succeed`: tries to lead the run instead of a leader that is lost; returns None if another host does. None if no
        host can: what the hosts agree on is lost with the leader.
        """
        self._leads = lead is not None
        notices = await self._coordination.watch(self._keys.notices)
        if any(change.key == self._keys.end for change in await anext(notices)):
            raise RunOverError("an earlier run of this name has not ended completely")
        registration = f"{self._keys.hosts}{self.host}"
        await self._coordination.put(registration, to_json(self._registration), self._lease)
        try:
            end = await first_to_end(
                self._heed(notices),
                self._work(request, say),
                self._notice_loss(),
                lead() if lead is not None else self._follow_leader(succeed),
            )
            if end.result is not None:
                await self._dismiss()
            return end
        except RunOverError:
            await self._coordination.delete(registration)  # another leader must not count on this host
            raise
        finally:
            if self._ranks is not None:
                self._ranks.close()
            self._snapshots.close()

    @property
    def has_begun(self) -> bool:
        """False until the ranks of this host have done the first step of a training."""
        generation = self.assigned.generation if self.assigned is not None else None
        if generation is not None and generation.number > 1:
            return True
        return self._ranks is not None and (self._ranks.verb != "run" or self._ranks.step > 0)

    async def stop(self, name: SignalName) -> None:
        """Ask the ranks of all hosts to finish their step and end."""
        await self._coordination.create(self._keys.stop, name, self._lease)

    async def declare_broken(self, generation: int) -> None:
        """Have the ranks of all hosts leave a generation, because it cannot go on."""
        await self._note_broken(generation)
        await self._coordination.put(self._keys.leave, str(generation), self._lease)

    async def _heed(self, notices: Watch) -> RunEnd:
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
                elif change.key == self._keys.leave:
                    await self._note_broken(int(change.value))
                elif change.key == self._keys.regroup:
                    if self._ranks is not None:
                        self._ranks.regroup(int(change.value))
                elif change.key == self._keys.give_up:
                    self._give_up(from_json(GivenUpRank, change.value.encode(), "a rank that is given up"))
                elif not self._leads:  # the leader knows it
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
                self.assigned = assigned
                report = await self._run(assigned, request(assigned), say)
                await self._coordination.put(f"{self._keys.reports}{self.host}", to_json(report), self._lease)
        raise OnecurveError("the connection to the other hosts was closed")

    async def _run(self, assigned: HostAssignment, request: str, say: Callable[[str], None]) -> HostReport:
        """Run one generation. The ranks live on afterwards: others may still need them to leave the process group."""
        assert assigned.generation is not None
        number = assigned.generation.number
        if self._ranks is None or self._ranks.verb != assigned.work:
            await self._dismiss()
            self._ranks = HostRanks(self._template, assigned.work, request, say, self._snapshots, assigned.renews)
        ranks = self._ranks
        await ranks.start(assigned.ranks)
        if self.stopped.done():
            ranks.stop(self.stopped.result())
        keeper, sender = "", None
        if self._server is not None:
            self._server.job_key = bytes.fromhex(assigned.generation.store.key)
            keeper = f"{self._registration.address}:{self._registration.snapshot_port}"
        if assigned.partner is not None:
            sender = SnapshotSender(number, assigned.partner)
        assignments = assigned.of_ranks(device_of(self._registration.address), keeper)
        try:
            notes = RankNotes(self._coordination, self._lease, self._keys, self.host, number)
            results = await first_to_end(ranks.run(assignments, sender, notes), self._raise_when_broken(number))
        except (RanksFailedError, _BrokenError) as error:
            if isinstance(error, RanksFailedError):
                await self.declare_broken(number)
            await ranks.leave(number)
            return HostReport(
                generation=number,
                failures=tuple(ranks.failures),
                step=ranks.step,
                facts_known=ranks.facts_known,
                snapshots=self._snapshots.complete(),
            )
        finally:
            if sender is not None:
                sender.close()
        return HostReport(generation=number, result=results[0] if assigned.first_rank == 0 else None)

    async def _note_broken(self, generation: int) -> None:
        if generation <= self._broken_generation:  # several hosts say so
            return
        async with self._broken:
            self._broken_generation, self.broken_at = generation, time.time()
            self._broken.notify_all()

    async def _raise_when_broken(self, generation: int) -> NoReturn:
        """Wait until the leader says that the generation cannot go on, because another host has lost a rank."""
        async with self._broken:
            await self._broken.wait_for(lambda: self._broken_generation >= generation)
        raise _BrokenError

    async def _dismiss(self) -> None:
        """Let the ranks of the last generation end."""
        if self._ranks is not None:
            await self._ranks.dismiss()
            self._ranks.close()
            self._ranks = None

    async def _notice_loss(self) -> NoReturn:
        await self._lease.lost.wait()
        name = self._registration.name
        raise _start_again(f"host {name} has lost the connection to the other hosts of the run")

    def _give_up(self, given_up: GivenUpRank) -> None:
        generation = self.assigned.generation if self.assigned is not None else None
        if self._ranks is not None and generation is not None and generation.number == given_up.generation:
            self._ranks.give_up(given_up.rank, given_up.what, given_up.line)

    async def _follow_leader(self, succeed: Callable[[], Awaitable[RunEnd | None]] | None) -> RunEnd:
        """Wait until the leader is lost; then lead, unless another host does.

        Returns how the run ended: a leader has said it, or this host has led it to its end.
        """
        async for leader in self._leaders():
            if leader == self._keys.run:
                continue
            entry = await self._coordination.get(self._keys.end)
            if entry is not None:
                return from_json(RunEnd, entry.value.encode(), "the end of the run")
            if leader is not None or succeed is None or self.assigned is None:  # another run, or nobody can go on
                break
            self._leads = True
            end = await succeed()
            if end is not None:
                return end
            self._leads = False
        error = "the host that led the run is lost: it no longer answers, or onecurve was killed there"
        raise _start_again(error) if self.assigned is not None else RunOverError(error)

    async def _leaders(self) -> AsyncIterator[str | None]:
        """The name of the run that is led now, and each time that changes; None if there is no leader."""
        leader: str | None = None
        is_first = True
        async for changes in await self._coordination.watch(LEADER):
            for change in changes:
                leader = change.value
            if changes or is_first:
                yield leader
            is_first = False


def _start_again(reason: str) -> InterruptError:
    """The error of a host that is well, but cannot go on alone; its exit status is 75."""
    return InterruptError(f"{reason}; started again, the run continues from its newest checkpoint", "SIGTERM")
