"""The process of a worker.

    python -m onecurve.verbs.async_worker

It reads one line of JSON from its standard input, a `WorkerOrder`: no list of processes shows the job's key.
"""

import logging
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from onecurve.data.training_data import open_data
from onecurve.describe.convert import from_json
from onecurve.describe.errors import full_text
from onecurve.describe.job_facts import JobFacts
from onecurve.describe.worker_order import WorkerOrder
from onecurve.device.collectives import Group
from onecurve.device.cores import unpin_cores
from onecurve.device.device import local_device, visible_devices
from onecurve.device.parent_process import die_with_parent
from onecurve.job.embedding import EmbeddingTable
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.launch.local_workers import LOST_RUN_STATUS
from onecurve.model.deferred import defer_init
from onecurve.params.dense_rows import DenseRows
from onecurve.params.row_client import RowsLostError
from onecurve.params.row_store import StoredTable
from onecurve.params.step_log import RowCrew
from onecurve.params.worker_rows import WorkerRows
from onecurve.runtime.fingerprint import fingerprint
from onecurve.runtime.row_tables import HoldRows, RowAccess
from onecurve.runtime.same_data import samples_of
from onecurve.runtime.step_worker import StepWorker
from onecurve.servers.encryption import client_context
from onecurve.servers.rank_servers import RankServers
from onecurve.servers.settings import RowSettings
from onecurve.servers.ticket_client import LostRunError, TicketClient
from onecurve.servers.ticket_messages import Done, Joined
from onecurve.train.state import TrainState
from onecurve.train.step_report import StepReport

MODULE = "onecurve.verbs.async_worker"

_log = logging.getLogger(__name__)


def work(order: WorkerOrder, is_leaving: Callable[[], bool] = lambda: False) -> None:
    """Compute steps until the run is over, or this worker is to leave."""
    unpin_cores()  # the run's own process may have some for itself
    devices = visible_devices()
    torch.set_num_threads(max(1, devices.cores // order.workers))
    job = load_job(Path(order.script), order.arguments)
    data, deferred = open_data(job), defer_init(job.model, job.seed)
    with TicketClient(order.tickets, bytes.fromhex(order.rows.key), client_context(order.rows.tls)) as client:
        known = {**fingerprint(job, deferred.module, data), **samples_of(data)}
        joined = client.join(known, is_own=order.is_own)
        try:
            facts = from_json(JobFacts, joined.facts.encode(), "facts")
            access = RowAccess(_worker_rows(job, order, joined, client), serves_parameters=True)
            start = TrainState(step=joined.step, position=joined.position)
            device = local_device(order.number % devices.devices)
            steps, unsent = joined.steps, joined.unsent
            worker = StepWorker(job, data, deferred, facts, device, access, start, steps, unsent)
            _compute_all(worker, client, is_leaving)
        except LostRunError:
            raise
        except Exception as error:
            client.fail(full_text(error), isinstance(error, RowsLostError))
            raise


def _compute_all(worker: StepWorker, client: TicketClient, is_leaving: Callable[[], bool]) -> None:
    done: Done | None = None
    while not (done is None and is_leaving()) and (ticket := client.ticket(done)) is not None:
        report = worker.compute(ticket.step, ticket.known, ticket.verdicts)
        done = _done(report, worker.rows, is_leaving())


def _done(report: StepReport, rows: WorkerRows, leaves: bool) -> Done:
    return Done(
        pushed=rows.pushed,
        lr=report.lr,
        nominal=report.nominal,
        sums=tuple(report.sums.tolist()),
        memory=report.memory,
        leaves=leaves,
    )


def _worker_rows(job: Job, order: WorkerOrder, joined: Joined, client: TicketClient) -> Callable[[Group], HoldRows]:
    def hold(tables: Mapping[str, EmbeddingTable], dtype: torch.dtype, dense: DenseRows | None) -> WorkerRows:
        assert dense is not None
        stored: dict[str, StoredTable] = {**tables, **dense.tables}
        servers = RankServers(order.rows, RowSettings.of(stored.values(), job.seed, dtype))
        crew = RowCrew(joined.crew, ranks=1)
        return WorkerRows(tables, servers, job.seed, dtype, dense, crew, joined.worker, client)

    return lambda _: hold


def main() -> int:
    order = from_json(WorkerOrder, sys.stdin.readline().encode(), "order")
    if order.parent is not None:
        die_with_parent(order.parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of the terminal: the run decides
        signal.signal(number, signal.SIG_IGN)
    try:
        work(order)
    except LostRunError as error:
        _log.info("%s", error)
        return LOST_RUN_STATUS
    except Exception as error:
        print(f"onecurve: worker {order.number}: {full_text(error)}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
