"""The rank processes of this host: started from the template, led through generations, ended."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from onecurve.describe.assignment import Assignment, RankFailure
from onecurve.describe.errors import OnecurveError, SignalName
from onecurve.describe.generation import Generation
from onecurve.describe.host import RankPosition, Straggler
from onecurve.device.kernel_kills import KernelKills
from onecurve.device.snapshot_memory import SnapshotMemory
from onecurve.launch.failure import CAUSE_SECONDS, is_cause
from onecurve.launch.message_socket import Message, MessageSocket
from onecurve.launch.rank_observer import RankObserver
from onecurve.launch.rank_process import RankProcess
from onecurve.launch.rank_watch import POLL_SECONDS, RankWatch
from onecurve.launch.row_servers import LocalRowServers
from onecurve.launch.snapshot_sender import SnapshotSender
from onecurve.launch.snapshots import Snapshots
from onecurve.launch.template_process import TemplateProcess

_EXIT_SECONDS = 10.0
"""A rank that has nothing more to do ends within this time, or is killed."""
_LEAVE_SECONDS = 2.0
"""A rank that was told to leave a generation does so within this time, or is killed."""

_log = logging.getLogger(__name__)


class HostRanks:
    """Ranks of this host that do the same work. What they say is taken in while the event loop runs."""

    def __init__(
        self,
        template: TemplateProcess,
        verb: str,
        request: str,
        say: Callable[[str], None],
        snapshots: Snapshots | None = None,
        renews: bool = False,
    ) -> None:
        """`verb`, `request`: what the ranks do. `say`: told what ranks want shown. `snapshots`: keeps those of the
        ranks. `renews`: no process takes part in two generations."""
        self._renews = renews
        self._template, self.verb = template, verb
        self._request, self._say = request, say
        self._snapshots = snapshots or Snapshots()
        self._sender: SnapshotSender | None = None
        self._ranks: list[RankProcess] = []
        """By their local ranks."""
        self._stragglers: list[Straggler] = []
        """Ranks that are slow, of which nobody has been told."""
        self._kernel_kills = KernelKills()
        self._row_servers = LocalRowServers(say)
        self._changed = asyncio.Event()
        self._lost_template: Exception | None = None

    @property
    def has_started(self) -> bool:
        return bool(self._ranks)

    async def start(self, count: int) -> None:
        """Have `count` ranks that wait for an assignment. Those that can go on keep their places, others are new."""
        await self._template.ready()
        for surplus in self._ranks[count:]:
            self._drop(surplus)
        del self._ranks[count:]
        for place, rank in enumerate(self._ranks):
            if self._renews or not rank.can_go_on:
                self._drop(rank)
                self._ranks[place] = self._fork()
        while len(self._ranks) < count:
            self._ranks.append(self._fork())

    async def run(
        self,
        assignments: Sequence[Assignment],
        sender: SnapshotSender | None = None,
        observer: RankObserver | None = None,
    ) -> list[str]:
        """Run one generation; return the ranks' results. Raises RanksFailedError as soon as a rank fails.

        `sender`: sends the ranks' snapshots to another host. `observer`: told about the ranks.
        """
        self._sender = sender
        self._stragglers.clear()  # those of the generation before
        for rank, assignment in zip(self._ranks, assignments, strict=True):
            rank.assign(assignment, self._snapshots_for(assignment.generation))
        watching = asyncio.create_task(self._watch(observer))
        try:
            while not any(rank.failure for rank in self._ranks):
                results = [rank.result for rank in self._ranks if rank.result is not None]
                if len(results) == len(self._ranks):
                    return results
                await self._change()
            raise RanksFailedError(self.failures)
        finally:
            watching.cancel()

    async def _watch(self, observer: RankObserver | None) -> None:
        """Look every now and then how far the ranks are."""
        watch = RankWatch(self._ranks)
        told: tuple[RankPosition, ...] = ()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self._kernel_kills.look()
            if watch.poll():
                self._changed.set()
            stragglers, self._stragglers = self._stragglers, []
            if observer is None:
                continue
            with suppress(OnecurveError):  # the other hosts cannot be told now; whoever needs them notices that too
                if (stall := watch.stall()) != told:
                    told = stall
                    await observer.stalled(stall)
                for straggler in stragglers:
                    await observer.straggles(straggler)

    def regroup(self, generation: int) -> None:
        """Ask the ranks to leave a generation after the next snapshot."""
        for rank in self._ranks:
            rank.regroup(generation)

    def give_up(self, rank: int, what: str, line: str) -> None:
        """Kill a rank of this host that takes too long. `what`: what was seen of it. `line`: where it is."""
        for process in self._ranks:
            if process.rank == rank and not process.has_left:
                process.give_up(what, line)
                self._changed.set()

    @property
    def failures(self) -> list[RankFailure]:
        """Why ranks could not end the current generation."""
        return [rank.failure for rank in self._ranks if rank.failure is not None]

    @property
    def step(self) -> int:
        """The most steps that a rank has done."""
        return max((rank.page.step for rank in self._ranks if rank.page is not None), default=0)

    @property
    def facts_known(self) -> bool:
        """True if a rank that can go on knows the `JobFacts`."""
        return not self._renews and any(
            rank.page.facts_known for rank in self._ranks if rank.can_go_on and rank.page is not None
        )

    async def leave(self, generation: int) -> None:
        """Have all ranks leave a generation that cannot go on. Those that do not leave in time are killed."""
        for rank in self._ranks:
            rank.leave(generation)
        if await self._changed_until(self._all_left, _LEAVE_SECONDS):
            return
        for rank in self._ranks:
            if not rank.has_left:
                text = f"it had not left the generation after {_LEAVE_SECONDS:g} s"
                rank.failure = RankFailure(rank=rank.rank, time=time.time(), text=text, lost_connection=True)
                rank.kill()

    async def wait_for_cause(self) -> None:
        """Wait until a rank has failed by itself, not because another one is gone."""
        await self._changed_until(lambda: any(map(is_cause, self.failures)) or self._all_left(), CAUSE_SECONDS)

    def stop(self, name: SignalName) -> None:
        """Ask all ranks to finish their step and end."""
        for rank in self._ranks:
            rank.stop(name)

    def kill(self) -> None:
        for rank in self._ranks:
            rank.kill()

    async def dismiss(self) -> None:
        """Let the ranks end, because there is no further generation."""
        for rank in self._ranks:
            self._close_channel(rank)
        await self._changed_until(lambda: all(rank.has_exited for rank in self._ranks), _EXIT_SECONDS)
        self.kill()
        self._row_servers.close()

    def close(self) -> None:
        """Kill the ranks and row servers that still live, and forget them all."""
        for rank in self._ranks:
            self._drop(rank)
        self._row_servers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def _snapshots_for(self, generation: Generation) -> Mapping[int, SnapshotMemory]:
        """The snapshots of this host that a generation continues from; others are no longer needed."""
        if generation.interruption is None:
            return {}
        point = generation.interruption.snapshot
        snapshots = self._snapshots.of(point.generation, point.step) if point is not None else {}
        self._snapshots.drop_before(generation.number, keep=snapshots.values())
        return snapshots

    def _fork(self) -> RankProcess:
        channel, other = MessageSocket.pair()
        # The number is known once the template is asked, which answers later.
        rank = RankProcess(
            number=-1,
            channel=channel,
            say=self._say,
            on_slot=self._on_slot,
            kernel_killed=self._kernel_kills.explain,
            on_straggler=lambda straggler: self._stragglers.append(straggler),
            row_servers=self._row_servers.start,
        )
        with other:
            rank.number = self._template.fork(self.verb, self._request, other.fileno(), partial(self._on_report, rank))
        asyncio.get_running_loop().add_reader(channel, self._on_message, rank)
        return rank

    def _drop(self, rank: RankProcess) -> None:
        rank.kill()
        self._template.forget(rank.number)
        self._close_channel(rank)

    def _all_left(self) -> bool:
        return all(rank.has_left for rank in self._ranks)

    async def _changed_until(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Wait for messages and ends of ranks until something is true; return False if it is not after this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_done():
                    await self._change()
        return is_done()

    async def _change(self) -> None:
        """Wait for a message or the end of a rank."""
        await self._changed.wait()
        self._changed.clear()
        if self._lost_template is not None:
            raise self._lost_template

    def _on_message(self, rank: RankProcess) -> None:
        rank.read()
        if rank.channel.is_closed:
            self._close_channel(rank)
        self._changed.set()

    def _on_slot(self, rank: RankProcess, message: Message) -> None:
        """Take in what a rank says about the memory of its snapshots."""
        generation, slot = message["generation"], message["slot"]
        if message["event"] == "shared":
            self._snapshots.keep(generation, rank.rank, slot, SnapshotMemory(rank.channel.take_descriptor()))
            return
        memory = self._snapshots.get(generation, rank.rank, slot)
        if self._sender is not None and memory is not None and rank.page is not None:
            self._sender.send(rank.rank, slot, memory, partial(rank.page.note_copied, generation))

    def _on_report(self, rank: RankProcess, report: Message) -> None:
        """Take in what the template reports about a rank."""
        if report["event"] == "started":
            rank.pid = report["pid"]
        elif report["event"] == "ended":
            _log.info("rank %d, process %s, ended with status %d", rank.rank, rank.pid, report["status"])
            rank.exited(report["status"])
        else:
            self._lost_template = OnecurveError(report["reason"])
        self._changed.set()

    def _close_channel(self, rank: RankProcess) -> None:
        if rank.channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(rank.channel)
            rank.close()


class RanksFailedError(Exception):
    """Ranks of this host have failed."""

    def __init__(self, failures: Sequence[RankFailure]) -> None:
        super().__init__(f"{len(failures)} ranks failed")
        self.failures = failures
