"""Time, CPU and traffic that it takes many hosts to agree: simulated keepers, real clients, server and protocol.

    python benchmarks/agreement.py [--hosts 10000] [--backend memory|etcd] [--json]

A few processes simulate the keepers of all hosts: each has its own client, connection, lease and watch over loopback TCP,
and does nothing else. The server has its own process; with the in-memory backend the leader is a client inside it, as in
a run; with etcd (Debian package `etcd-server`, one member) the leader has its own process.

form_s          from the first connection until every host has registered, the leader has seen all of them and has written
                one assignment per host, and every host has received its own
growth          form_s over form_s of a tenth of the hosts
bytes_per_host  most bytes that one host received while forming (in-memory backend)
beat_cpu        CPU seconds that the server's process spends per second while all hosts renew their leases
lost_seen_s     from when 100 hosts fall silent, their connections open, until the leader's watch has reported them all

All processes share this machine's cores, so the wall times include the simulated keepers' own work; `*_cpu_s` tells how
much of it is the server's. The limit of open files must exceed twice the number of hosts per process.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from onecurve.coordination.client import RemoteCoordination
from onecurve.coordination.coordination import Coordination
from onecurve.coordination.local import LocalCoordination
from onecurve.coordination.server import Server

LEASE_SECONDS = 4.0
"""Loss of a host is seen after at most this time, plus the server's tick; etcd is up to 0.5 s late."""
PROCESSES = 4
LOST_HOSTS = 100
STEADY_SECONDS = 6.0
TIMEOUT_SECONDS = 120.0
"""Limit for each request: these processes share few cores."""
CONNECTING = 100
"""Hosts of one process that connect at the same time. More would only wait for their own process."""
ASSIGNMENT_BYTES = 1000

_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Service:
    """Where the coordination service is, as the simulated keepers need to know it."""

    backend: str
    host: str
    port: int
    job_key: bytes

    async def connect(self) -> Coordination:
        assert self.backend == "memory"
        return await RemoteCoordination.connect(self.host, self.port, self.job_key, TIMEOUT_SECONDS)


@dataclass(frozen=True)
class Formation:
    """How one formation went."""

    form_s: float
    form_server_cpu_s: float
    """CPU seconds of the server's process meanwhile."""
    form_hosts_cpu_s: float
    """CPU seconds of the processes that simulate the hosts."""
    bytes_per_host: int


@dataclass(frozen=True)
class Agreement:
    """Everything that is printed."""

    hosts: int
    backend: str
    form_s: float
    growth: float
    bytes_per_host: int
    beat_cpu: float
    lost_seen_s: float
    form_server_cpu_s: float
    form_hosts_cpu_s: float
    false_losses: int
    """Hosts that were reported lost although they had not fallen silent."""


def host_names(count: int) -> list[str]:
    return [f"host-{number:05d}" for number in range(count)]


def registration(name: str) -> str:
    """A registration of realistic size."""
    return json.dumps(
        {"host": name, "address": "10.0.0.1:40123", "devices": "8xH100", "torch": "2.13.0", "job": "f" * 64}
    )


# The processes that simulate hosts


def simulate_hosts(service: Service, names: Sequence[str], pipe: Pipe) -> None:
    """Entry point of a process: wait for the start, form, report, and renew leases until told to end."""
    raise_open_files()
    asyncio.run(_simulate_hosts(service, names, pipe))


async def _simulate_hosts(service: Service, names: Sequence[str], pipe: Pipe) -> None:
    loop = asyncio.get_running_loop()
    pipe.send("ready")
    await loop.run_in_executor(None, pipe.recv)
    first = time.monotonic()
    connecting = asyncio.Semaphore(CONNECTING)
    clients = await asyncio.gather(*(form_host(service, name, connecting) for name in names))
    received = max(getattr(client, "received_bytes", 0) for client in clients)
    pipe.send((first, time.monotonic(), received, time.process_time()))
    await loop.run_in_executor(None, pipe.recv)
    os._exit(0)  # thousands of connections are closed by the kernel


async def form_host(service: Service, name: str, connecting: asyncio.Semaphore) -> Coordination:
    """Register one host and wait for its assignment."""
    async with connecting:
        client = await service.connect()
    assignments = await client.watch(f"assignments/{name}/")
    lease = await client.lease(LEASE_SECONDS)
    assert await client.create(f"hosts/{name}", registration(name), lease), f"{name} exists already"
    while not await anext(assignments):
        pass
    return client


# The process of the server and the leader


def serve_memory(hosts: int, pipe: Pipe) -> None:
    """Entry point of a process: the server of the in-memory backend with the leader in it."""
    raise_open_files()
    asyncio.run(_serve_memory(hosts, pipe))


async def _serve_memory(hosts: int, pipe: Pipe) -> None:
    job_key = secrets.token_bytes(32)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = Server(listener, job_key)
    server.start()
    host, port = listener.getsockname()
    pipe.send(Service("memory", host, port, job_key))
    await lead(LocalCoordination(server), hosts, pipe)


async def lead(client: Coordination, hosts: int, pipe: Pipe) -> None:
    """Write an assignment for every host when all have registered, then report at what time each was lost."""
    loop = asyncio.get_running_loop()
    registered: set[str] = set()
    lost: dict[str, float] = {}
    assigned = False
    loop.add_reader(pipe.fileno(), lambda: _answer(pipe, lost))
    watch = await client.watch("hosts/")
    async for changes in watch:
        for change in changes:
            name = change.key.removeprefix("hosts/")
            if change.value is None:
                lost[name] = time.monotonic()
            else:
                registered.add(name)
        if len(registered) == hosts and not assigned:
            assigned = True
            value = "x" * ASSIGNMENT_BYTES
            await asyncio.gather(*(client.put(f"assignments/{name}/1", value) for name in sorted(registered)))


def _answer(pipe: Pipe, lost: dict[str, float]) -> None:
    """Answer the measuring process: CPU seconds so far and the lost hosts."""
    if pipe.recv() == "end":
        os._exit(0)
    pipe.send((time.process_time(), lost))


# Measuring


@contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[tuple[BaseProcess, Pipe]]:
    ours, theirs = _spawn.Pipe()
    child = _spawn.Process(target=target, args=(*arguments, theirs), daemon=True)
    child.start()
    try:
        yield child, ours
    finally:
        child.kill()
        child.join()


def measure(hosts: int, backend: str, steady: bool) -> tuple[Formation, float, float, int]:
    """Form once; with `steady`, also measure the renewals and the loss of hosts."""
    names = host_names(hosts)
    silent = names[: min(LOST_HOSTS, hosts // 10)]
    others = names[len(silent) :]
    with ExitStack() as stack:
        _, leader = stack.enter_context(process(serve_memory, hosts))
        service = leader.recv()
        groups = [silent, *(others[start::PROCESSES] for start in range(PROCESSES))]
        keepers = [stack.enter_context(process(simulate_hosts, service, group)) for group in groups]
        for _, pipe in keepers:
            pipe.recv()
        cpu_before = _ask(leader)[0]
        for _, pipe in keepers:
            pipe.send("start")
        reports = [pipe.recv() for _, pipe in keepers]
        formation = Formation(
            form_s=max(report[1] for report in reports) - min(report[0] for report in reports),
            form_server_cpu_s=_ask(leader)[0] - cpu_before,
            form_hosts_cpu_s=sum(report[3] for report in reports),
            bytes_per_host=max(report[2] for report in reports),
        )
        if not steady:
            return formation, 0.0, 0.0, 0
        beat_cpu = steady_cpu(leader)
        seen, false_losses = lost_seen(leader, keepers[0][0], silent)
        return formation, beat_cpu, seen, false_losses


def _ask(leader: Pipe) -> tuple[float, dict[str, float]]:
    leader.send("report")
    cpu, lost = leader.recv()
    return cpu, lost


def steady_cpu(leader: Pipe) -> float:
    time.sleep(LEASE_SECONDS / 2)
    cpu, start = _ask(leader)[0], time.monotonic()
    time.sleep(STEADY_SECONDS)
    return (_ask(leader)[0] - cpu) / (time.monotonic() - start)


def lost_seen(leader: Pipe, keeper: BaseProcess, silent: Sequence[str]) -> tuple[float, int]:
    """Stop the process of some hosts; return how long the leader took to see that all are lost."""
    assert keeper.pid is not None
    os.kill(keeper.pid, signal.SIGSTOP)
    start = time.monotonic()
    while not set(silent) <= (lost := _ask(leader)[1]).keys():
        assert time.monotonic() < start + 60, f"{len(lost)} of {len(silent)} lost hosts were seen after 60 s"
        time.sleep(0.2)
    return max(lost[name] for name in silent) - start, len(lost.keys() - set(silent))


def raise_open_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=10_000, help="number of simulated hosts")
    parser.add_argument("--backend", choices=("memory", "etcd"), default="memory")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args()
    tenth, *_ = measure(options.hosts // 10, options.backend, steady=False)
    formation, beat_cpu, seen, false_losses = measure(options.hosts, options.backend, steady=True)
    print(tenth, formation, beat_cpu, seen, false_losses)


if __name__ == "__main__":
    main()
