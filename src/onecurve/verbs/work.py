"""onecurve work: compute steps of a run that is asynchronous, on this machine."""

import signal
from collections.abc import Callable, Sequence
from types import FrameType

from onecurve.describe.errors import OnecurveError
from onecurve.describe.row_servers import RowServerAddress
from onecurve.describe.worker_order import WorkerOrder
from onecurve.job.script import load_job
from onecurve.job.script_path import Script, script_path
from onecurve.servers.ticket_address import find_tickets
from onecurve.verbs.async_worker import work as compute_steps


def work(script: Script, arguments: Sequence[str] = (), *, say: Callable[[str], None] = lambda _: None) -> None:
    """Compute steps of a run with `mode="async"` and servers of `onecurve serve`, until it is over.

    At SIGINT (Ctrl-C), SIGTERM or SIGHUP this worker finishes its step and leaves; the run goes on. At a second signal
    it ends at once, and another worker computes its step.

    Args:
        script: The same Python file as the run's.
        arguments: The same arguments as the run's. Default: none.
        say: A function that is called with short texts. Default: they are dropped.
    """
    path = script_path(script, "work")
    params = load_job(path, arguments).row_servers
    if params is None or not (params.is_async and params.is_etcd):
        raise OnecurveError(
            f"{path}: work: the job needs params=onecurve.Params('etcd://HOST:PORT,…/NAME', mode='async')"
        )
    rows = RowServerAddress.of_etcd(params.address, params.tls or "")
    tickets = find_tickets(rows)
    signals: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if signals:
            raise SystemExit(128 + number)
        say("leaving after this step")
        signals.append(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, note)
    say(f"computing steps of {params.address} for the run at {tickets}")
    order = WorkerOrder(
        script=str(path),
        arguments=tuple(arguments),
        tickets=tickets,
        rows=rows,
        number=0,
        workers=1,
        parent=None,
    )
    compute_steps(order, lambda: bool(signals))
