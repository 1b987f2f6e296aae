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
from onecurve.hosts.network import address_towards
from onecurve.launch.local_workers import LocalWorkers
from onecurve.params.tickets import Tickets
from onecurve.runtime.run import Run
from onecurve.runtime.served_run import ServedRun
from onecurve.servers.encryption import server_context
from onecurve.servers.service import etcd_member
from onecurve.servers.ticket_address import announce_tickets, withdraw_tickets
from onecurve.servers.ticket_messages import Joined
from onecurve.servers.ticket_server import Counted, TicketEvent, TicketServer, WorkerFailed
from onecurve.train.step_report import StepReport
from onecurve.verbs.async_worker import MODULE

_LOOK_SECONDS = 0.05
_LOOPBACK = "127.0.0.1"


class AsyncTraining:
    """Iterate over it for the reports of steps, in the order in which they count."""

    def __init__(
        self, run: Run, request: RunRequest, rows: RowServerAddress, is_stop_asked: Callable[[], bool]
    ) -> None:
        """`rows`: where the row servers are found."""
        self._run, self._request, self._rows, self._is_stop_asked = run, request, rows, is_stop_asked
        self._served = ServedRun(run)
        self._stops = self._saves = False

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
        )
        key, tls = bytes.fromhex(self._rows.key), server_context(self._rows.tls)
        listen = self._listening_address()
        server = TicketServer(tickets, joined, run.components.fingerprint, served.fill, listen, key, tls)
        with ExitStack() as stack:
            stack.callback(server.close)
            if self._rows.is_etcd:
                announce_tickets(self._rows, server.address)
                stack.callback(withdraw_tickets, self._rows)
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
            raise OnecurveError(event.text)
        if not isinstance(event, Counted):
            return
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

    def _next_event(self, server: TicketServer, workers: LocalWorkers) -> TicketEvent:
        while True:
            if self._is_stop_asked() and not self._stops:
                self._stops = True
                server.pause()
            if self._served.is_save_overdue and not self._saves:
                self._saves = True
                server.pause()
            for text in workers.replace_lost():
                self._run.components.on_event(SaveEvent("warning", text))
            try:
                return server.events.get(timeout=_LOOK_SECONDS)
            except Empty:
                continue

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
