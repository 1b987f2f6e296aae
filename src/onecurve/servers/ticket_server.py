"""Hands out tickets to workers, and takes in what they have computed, in a thread."""

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import msgspec

from onecurve.describe.data_marks import SAMPLES, sample_difference
from onecurve.describe.errors import OnecurveError
from onecurve.job.row_point import StepVerdict
from onecurve.params.row_client import RowsLostError
from onecurve.params.tickets import Tickets
from onecurve.servers.greeting import welcome
from onecurve.servers.ticket_messages import (
    Alive,
    Ask,
    AskNumber,
    Done,
    End,
    Failed,
    Join,
    Joined,
    Number,
    Ticket,
    TicketMessage,
    encoded,
    receive,
)

_SILENT_SECONDS = 15.0
"""A worker that has said nothing for so long is lost. It says every second that it lives, unless something holds the
lock of its interpreter."""
_AGAIN_SECONDS = 1.0
"""Before that, what it has said is read that this process had no time for."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Counted:
    """A ticket that counts now."""

    done: Done
    step: int
    """So many count."""
    is_paused: bool
    """True if the rows do not change until `go_on` is called."""


@dataclass(frozen=True)
class WorkerLost:
    """A worker that is gone, or silent."""

    worker: str
    """Its number, and where it is."""
    is_own: bool
    """True if the run has started it."""


@dataclass(frozen=True)
class WorkerFailed:
    """A worker that cannot go on, and says why."""

    worker: str
    is_own: bool
    ticket: int | None
    """What it has left, and another one computes, if the run goes on."""
    text: str
    lost_rows: bool = False


TicketEvent = Counted | WorkerLost | WorkerFailed


@dataclass
class _Worker:
    number: int
    address: str
    is_own: bool = True
    ticket: int | None = None
    row_step: int | None = None
    """The row step in which it pushes the ticket."""

    def __str__(self) -> str:
        return f"worker {self.number} at {self.address}"

    def has_pushed(self, done: Done) -> bool:
        """True if that is the row step which it says it has pushed."""
        return self.row_step == (done.pushed[0] if done.pushed is not None else None)


class TicketServer:
    """Serves workers from its start until `close`."""

    def __init__(
        self,
        tickets: Tickets,
        joined: Joined,
        job: Mapping[str, str],
        fill: Callable[[int, Mapping[int, StepVerdict]], None],
        listen: str,
        key: bytes,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`joined`: what a worker is told. `job`: the fingerprint that its job must have. `fill`: pushes nothing in a
        row step, wherever nothing was pushed; called by one thread at a time, never while the tickets are paused."""
        self._tickets, self._joined, self._job, self._fill = tickets, joined, job, fill
        self._listen, self._key, self._tls = listen, key, tls
        self.events: SimpleQueue[TicketEvent] = SimpleQueue()
        self.address = ""
        self._workers = 0
        self._changed: asyncio.Condition
        self._filling: asyncio.Lock
        self._is_over = False
        self._error: OSError | None = None
        self._loop = asyncio.new_event_loop()
        begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=[begun], name="onecurve tickets", daemon=True)
        self._thread.start()
        begun.wait()
        if not self.address:
            raise OnecurveError(f"no worker could connect: {listen} is not an address of this host") from self._error

    def pause(self) -> None:
        """Pause as soon as possible; `Counted.is_paused` says when."""
        self._do(self._tickets.pause)

    def go_on(self) -> None:
        """Hand out tickets again."""
        self._do(self._tickets.go_on)

    def say_over(self) -> None:
        """Tell all workers, when they ask for a ticket, that there is none any more."""
        self._is_over = True
        self._do(lambda: None)

    def close(self) -> None:
        """Close all connections."""
        self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join()

    def _run(self, begun: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._serving = self._loop.create_task(self._serve(begun))
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serving)
        tasks = asyncio.all_tasks(self._loop)
        self._loop.run_until_complete(asyncio.wait(tasks, timeout=1.0) if tasks else asyncio.sleep(0))
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _serve(self, begun: threading.Event) -> None:
        self._changed, self._filling = asyncio.Condition(), asyncio.Lock()
        try:
            server = await asyncio.start_server(self._accept, self._listen, 0, ssl=self._tls)
            self.address = f"{self._listen}:{server.sockets[0].getsockname()[1]}"
        except OSError as error:
            self._error = error
            return
        finally:
            begun.set()
        try:
            await asyncio.Event().wait()  # until this task is cancelled
        finally:
            server.close()  # without waiting for connections

    def _do(self, change: Callable[[], None]) -> None:
        """Change the tickets, and let those look again who wait for one."""

        async def do() -> None:
            async with self._changed:
                change()
                self._changed.notify_all()

        asyncio.run_coroutine_threadsafe(do(), self._loop).result()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await welcome(reader, writer, self._key)
        except OnecurveError as error:
            _log.warning("connection refused: %s", error)
            writer.close()
            return
        self._workers += 1
        host, *_ = writer.get_extra_info("peername") or ("an unknown address",)
        worker = _Worker(self._workers, str(host))
        try:
            await self._answer_all(worker, reader, writer)
        except asyncio.CancelledError:
            return  # the run ends; Python 3.11 would report it as an error
        except (OSError, EOFError, TimeoutError, OnecurveError) as error:
            _log.info("%s is lost: %s", worker, error or type(error).__name__)
            self.events.put(WorkerLost(str(worker), worker.is_own))
        finally:
            writer.close()
            await self._take_back(worker)

    async def _answer_all(self, worker: _Worker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a worker until it leaves. Raises an error if it is lost."""
        answering: asyncio.Task[None] | None = None
        try:
            while True:
                message = await self._next_message(reader)
                if isinstance(message, Alive):
                    continue
                if answering is not None and not answering.done():
                    raise OnecurveError("it has asked before it was answered")
                if isinstance(message, Failed):
                    self._note_failure(worker, message.text, message.lost_rows)
                    return
                # While it waits for its answer, it is heard: it may be lost meanwhile.
                answering = asyncio.create_task(self._answer(worker, message, writer))
        finally:
            if answering is not None:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)

    async def _next_message(self, reader: asyncio.StreamReader) -> TicketMessage:
        receiving = asyncio.ensure_future(receive(reader))
        for seconds in (_SILENT_SECONDS, _AGAIN_SECONDS):
            await asyncio.wait([receiving], timeout=seconds)
            if receiving.done():
                return receiving.result()
        receiving.cancel()
        raise TimeoutError(f"it was silent for {_SILENT_SECONDS:g} s")

    def _note_failure(self, worker: _Worker, text: str, lost_rows: bool = False) -> None:
        self.events.put(WorkerFailed(str(worker), worker.is_own, worker.ticket, text, lost_rows))

    async def _answer(self, worker: _Worker, message: TicketMessage, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(encoded(await self._answer_to(worker, message)))
        except Exception as error:  # the thread that trains must be told
            self._note_failure(worker, f"{type(error).__name__}: {error}")

    async def _answer_to(self, worker: _Worker, message: TicketMessage) -> TicketMessage:
        if isinstance(message, Join):
            return self._join(worker, message)
        if isinstance(message, AskNumber) and worker.ticket is not None:
            return await self._number(worker)
        if isinstance(message, Ask) and worker.ticket is None:
            return await self._next_ticket(worker)
        if isinstance(message, Done) and worker.ticket is not None and worker.has_pushed(message):
            await self._count(worker, message)
            return End() if message.leaves else await self._next_ticket(worker)
        return Failed(f"{type(message).__name__} was not expected")

    def _join(self, worker: _Worker, message: Join) -> TicketMessage:
        worker.is_own = message.is_own
        ours, theirs = ({n: v for n, v in job.items() if n != SAMPLES} for job in (self._job, message.job))
        differing = [name for name, value in ours.items() if theirs.get(name) != value]
        if differing or len(theirs) != len(ours):
            return Failed(f"the job of this worker differs from the run's: {', '.join(differing) or 'more fields'}")
        samples = self._job.get(SAMPLES, ""), message.job.get(SAMPLES, "")
        if found := sample_difference(*samples, ("in the run", "in this worker")):
            return Failed(found)
        return msgspec.structs.replace(self._joined, worker=worker.number)

    async def _next_ticket(self, worker: _Worker) -> TicketMessage:
        async with self._changed:
            while True:
                if self._is_over:
                    return End()
                worker.ticket = self._tickets.hand_out()
                if worker.ticket is not None:
                    return Ticket(worker.ticket, self._tickets.known, dict(self._tickets.verdicts))
                await self._changed.wait()

    async def _number(self, worker: _Worker) -> TicketMessage:
        async with self._changed:
            while worker.row_step is None:
                worker.row_step = self._tickets.number_step()
                if worker.row_step is None:
                    await self._changed.wait()
            return Number(worker.row_step, dict(self._tickets.verdicts))

    async def _count(self, worker: _Worker, message: Done) -> None:
        async with self._changed:
            self._tickets.count(message.pushed)
            worker.ticket = worker.row_step = None
            self.events.put(Counted(message, self._tickets.counted, self._tickets.is_paused))
            self._changed.notify_all()

    async def _take_back(self, worker: _Worker) -> None:
        """Have the ticket of a lost worker computed by another one. What it has pushed changes nothing."""
        if worker.ticket is None:
            return
        if worker.row_step is not None:
            async with self._filling:
                try:
                    await asyncio.to_thread(partial(self._fill, worker.row_step, dict(self._tickets.verdicts)))
                except Exception as error:  # the thread that trains must be told
                    self._note_failure(
                        _Worker(worker.number, worker.address), str(error), isinstance(error, RowsLostError)
                    )
                    return
        async with self._changed:
            if worker.row_step is not None:
                self._tickets.skip(worker.row_step)
            self._tickets.return_ticket(worker.ticket)
            self._changed.notify_all()
