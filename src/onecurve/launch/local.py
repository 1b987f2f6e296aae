"""Starts the ranks of one host with torch's elastic agent and waits for them."""

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

from onecurve.launch.failure import first_failure
from onecurve.launch.rendezvous import LoopbackRendezvous

_LOOPBACK_DEVICE = "lo"
_SECONDS_TO_FINISH = 600  # a large model takes its time to be saved; a second Ctrl-C does not wait


def launch(module: str, arguments: Sequence[str], ranks: int) -> bool:
    """Run `python -m module arguments…` as every rank; raises RankFailedError where one fails.

    Ctrl-C and SIGTERM ask all ranks to finish their step and end, a second one ends them at once; both return False.
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
        agent = LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=folder), shutdown_timeout=_SECONDS_TO_FINISH)
        with _signals_as_interrupt():
            try:
                result = agent.run()
            except SignalException:
                return False
        if result.is_failed():
            raise first_failure(result.failures)
        return True


def _silence_agent() -> None:
    """What there is to say of ranks that fail or stop, we say. Each of the agent's loggers has a level of its own."""
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _private_network() -> dict[str, str]:
    """Ranks of one host talk over the loopback device: no port is open to the network."""
    return {"GLOO_SOCKET_IFNAME": _LOOPBACK_DEVICE, "NCCL_SOCKET_IFNAME": _LOOPBACK_DEVICE}


@contextmanager
def _environment(additions: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in additions}
    os.environ.update({name: value for name, value in additions.items() if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """The agent passes on the signal it gets. Loader processes ignore SIGINT alone, so ranks always get that."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGINT"

    def interrupt(_: int, __: FrameType | None) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    try:
        yield
    finally:
        del os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"]
        for each, handler in before.items():
            signal.signal(each, handler)
