"""Trains with workers that compute different steps at the same time: hands out the steps, and counts them."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from queue import Empty

from onecurve.checkpoint.saver import SaveEvent
from onecurve.describe.convert import to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.requests import RunRequest
from onecurve.describe.row_servers import RowServerAddress
from onecurve.describe.worker_order import WorkerOrder
from onecurve.device.network import address_towards
from onecurve.launch.local_workers import LocalWorkers
from onecurve.params.tickets import Tickets
from onecurve.runtime.run import Run
from onecurve.runtime.served_run import ServedRun
from onecurve.servers.encryption import server_context
from onecurve.servers.service import etcd_member
from onecurve.servers.ticket_address import announce_tickets, withdraw_tickets
from onecurve.servers.ticket_messages import Joined
from onecurve.servers.ticket_server import Counted, TicketEvent, TicketServer, WorkerFailed, WorkerLost
from onecurve.train.step_report import StepReport
from onecurve.verbs.async_worker import MODULE

_LOOK_SECONDS = 0.05
_MAX_LOSSES = 3
"""A worker is started again so often without a step that counts."""
_LOOPBACK = "127.0.0.1"


class AsyncTraining:
    """Iterate over it for the reports of steps, in the order in which they count."""

    def __init__(
        self,
        run: Run,
        request: RunRequest,
        rows: RowServerAddress,
        is_stop_asked: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        """`rows`: where the row servers are found. `say`: shows a short text to the user."""
        self._run, self._request, self._rows = run, request, rows
        self._is_stop_asked, self._say = is_stop_asked, say
        self._served = ServedRun(run)
        self._stops = self._saves = False
        self._losses = 0
        """Workers that were lost since a step has counted."""
        self._failed: set[int] = set()
        """Tickets with which a worker has failed that the run has not started."""

    def __iter__(self) -> Iterator[StepReport]:
        run, served = self._run, self._served
        tickets = served.begin()
        joined = Joined(
            worker=0,
            facts=served.facts,
            crew=served.crew,
            steps=run.steps,
            step=run.first_step,
            position=run.components.state.position,
            unsent=served.unsent,
        )
        key, tls = bytes.fromhex(self._rows.key), server_context(self._rows.tls)
        listen = self._listening_address()
        server = TicketServer(tickets, joined, run.components.fingerprint, served.fill, listen, key, tls)
        with ExitStack() as stack:
            stack.callback(server.close)
            if self._rows.is_etcd:
                announce_tickets(self._rows, server.address)
                stack.callback(self._withdraw)
            workers = LocalWorkers(MODULE, run.job.async_workers, lambda number: self._order(number, server.address))
            stack.callback(workers.close)
            stack.callback(server.say_over)  # first, so that the workers end
            counted = run.first_step
            while counted < run.steps:
                for report in self._count(self._next_event(server, workers), tickets, server):
                    counted = report.step
                    yield report

    def _listening_address(self) -> str:
        """Where workers connect: other machines can do so if the connections are encrypted."""
        if not (self._rows.is_etcd and self._rows.tls):
            return _LOOPBACK
        return address_towards(*etcd_member(self._rows.service))

    def _count(self, event: TicketEvent, tickets: Tickets, server: TicketServer) -> Iterator[StepReport]:
        """Count what a worker has computed."""
        if isinstance(event, WorkerFailed):
            self._take_failure(event)
        if isinstance(event, WorkerLost) and not event.is_own:
            self._say(f"{event.worker} is lost; another one computes its step")
        if not isinstance(event, Counted):
            return
        self._losses = 0
        report = self._served.count(
            step=event.step,
            lr=event.done.lr,
            nominal=event.done.nominal,
            sums=event.done.sums,
            memory=event.done.memory,
            stops=event.is_paused and self._stops,
            saves=event.is_paused and self._saves,
        )
        if event.is_paused:
            self._served.take_weights(tickets.row_step, tickets.verdicts)
        yield report
        if event.is_paused:
            self._saves = False
            server.go_on()

    def _take_failure(self, failed: WorkerFailed) -> None:
        """End the run, unless the fault may be that of a machine: another worker then computes the step."""
        text = f"{failed.worker} has failed: {failed.text}"
        if failed.lost_rows:
            raise OnecurveError(f"{failed.text}; {self._run.how_to_go_on()}")
        if failed.is_own or failed.ticket in self._failed:
            raise OnecurveError(text)
        if failed.ticket is not None:
            self._failed.add(failed.ticket)
        self._say(f"{text}; the run goes on without it")

    def _next_event(self, server: TicketServer, workers: LocalWorkers) -> TicketEvent:
        while True:
            if self._is_stop_asked() and not self._stops:
                self._stops = True
                server.pause()
            if self._served.is_save_overdue and not self._saves:
                self._saves = True
                server.pause()
            try:
                return server.events.get(timeout=_LOOK_SECONDS)
            except Empty:
                self._replace_lost(workers)

    def _replace_lost(self, workers: LocalWorkers) -> None:
        for text in workers.replace_lost():
            self._losses += 1
            self._say(text)
            self._run.components.on_event(SaveEvent("warning", text))
            if self._losses > _MAX_LOSSES * self._run.job.async_workers:
                raise OnecurveError(
                    f"workers were lost {self._losses} times, and no step has counted since: {text.partition(';')[0]}. "
                    "If they were killed because memory is short, use fewer workers, or smaller micro-batches"
                )

    def _withdraw(self) -> None:
        try:
            withdraw_tickets(self._rows)
        except OnecurveError as error:  # the run has ended well all the same
            self._say(f"etcd still says that this run hands out steps: {error}")

    def _order(self, number: int, tickets: str) -> str:
        return to_json(
            WorkerOrder(
                script=self._request.script,
                arguments=tuple(self._request.arguments),
                tickets=tickets,
                rows=self._rows,
                number=number,
                workers=self._run.job.async_workers,
                parent=os.getpid(),
            )
        )
