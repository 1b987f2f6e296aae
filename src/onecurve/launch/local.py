"""Starts the ranks of this host with torch's elastic agent and waits for them."""

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException

from onecurve.describe.errors import SignalName
from onecurve.launch.failure import first_failure
from onecurve.launch.rendezvous import LoopbackRendezvous
from onecurve.launch.stop import STOP_SIGNALS

_LOOPBACK_DEVICE = "lo"
_SHUTDOWN_SECONDS = 600  # saving a large model takes long; a second Ctrl-C does not wait


def launch(module: str, arguments: Sequence[str], ranks: int) -> SignalName | None:
    """Run `python -m module arguments…` in `ranks` processes and wait for them; return None when all have finished.

    Raises RankFailedError if a rank fails. After Ctrl-C, SIGTERM or SIGHUP all ranks finish their step and end; a
    second signal ends them immediately. In both cases the result is the first signal.
    """
    _silence_agent()
    with tempfile.TemporaryDirectory(prefix="onecurve-") as folder, _environment(_private_network()):
        spec = WorkerSpec(
            role="rank",
            local_world_size=ranks,
            rdzv_handler=LoopbackRendezvous(uuid.uuid4().hex),
            entrypoint=sys.executable,
            args=("-u", "-m", module, *arguments),
            max_restarts=0,
            monitor_interval=0.1,
        )
        agent = LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=folder), shutdown_timeout=_SHUTDOWN_SECONDS)
        with _signals_as_interrupt() as received:
            try:
                result = agent.run()
            except SignalException:
                return received[0] if received else "SIGINT"
        if result.is_failed():
            raise first_failure(result.failures)
        return None


def _silence_agent() -> None:
    """Turn off the agent's log messages, since failures and stops are reported here.

    Each of the agent's loggers sets its own level, so their parent's level has no effect.
    """
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _private_network() -> dict[str, str]:
    """Environment variables that keep the ranks' traffic on the loopback device, so that no port is open to others."""
    return {"GLOO_SOCKET_IFNAME": _LOOPBACK_DEVICE, "NCCL_SOCKET_IFNAME": _LOOPBACK_DEVICE}


@contextmanager
def _environment(additions: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a while; variables that the user has set keep their value."""
    before = {name: os.environ.get(name) for name in additions}
    os.environ.update({name: value for name, value in additions.items() if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


@contextmanager
def _signals_as_interrupt() -> Iterator[list[SignalName]]:
    """Turn SIGTERM and SIGHUP into SIGINT; yield a list to which those that were received are added.

    The agent forwards the signal that it receives, and the data loaders' processes ignore only SIGINT.
    """
    previous_handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    received: list[SignalName] = []
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGINT"

    def interrupt(number: int, _: FrameType | None) -> None:
        received.append(STOP_SIGNALS[number])
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    try:
        yield received
    finally:
        del os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"]
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
