"""Time, CPU and traffic that it takes many hosts to agree: simulated keepers, real clients, server and protocol.

    python benchmarks/agreement.py [--hosts 10000] [--backend memory|etcd] [--json]

A few processes simulate the keepers of all hosts: each has its own client, connection, lease and watch over loopback
TCP, and does nothing else. The server has its own process; with the in-memory backend the leader is a client inside
it, as in a run; with etcd (Debian package `etcd-server`, one member) the leader has its own process.

form_s          from the first connection until every host has registered, the leader has seen all of them and has
written
                one assignment per host, and every host has received its own
growth          form_s over form_s of a tenth of the hosts
bytes_per_host  most bytes that one host received while forming (etcd: without the headers of HTTP)
beat_cpu        CPU seconds that the server's process spends per second while all hosts renew their leases
lost_seen_s     from when 100 hosts fall silent, their connections open, until the leader's watch has reported them all

All processes share this machine's cores, so the wall times include the simulated keepers' own work; `*_cpu_s` tells how
much of it is the server's. The limit of open files must exceed twice the number of hosts per process.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import resource
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from onecurve.coordination.client import RemoteCoordination
from onecurve.coordination.coordination import Coordination
from onecurve.coordination.etcd import EtcdCoordination
from onecurve.coordination.etcd_address import EtcdAddress
from onecurve.coordination.local import LocalCoordination
from onecurve.coordination.server import Server

LEASE_SECONDS = {"memory": 4.5, "etcd": 4.0}
"""A loss is to be seen within 5 s. etcd is up to 0.5 s late."""
PROCESSES = 2
LOST_HOSTS = 100
STEADY_SECONDS = 4.0
TIMEOUT_SECONDS = 120.0
"""Limit for each request: these processes share few cores."""
ASSIGNMENT_BYTES = 1000

_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class MemoryService:
    """The server of the in-memory backend, as the simulated keepers need to know it."""

    host: str
    port: int
    job_key: bytes
    lease_seconds = LEASE_SECONDS["memory"]

    async def connect(self) -> RemoteCoordination:
        return await RemoteCoordination.connect(self.host, self.port, self.job_key, TIMEOUT_SECONDS)


@dataclass(frozen=True)
class EtcdService:
    """A member of etcd, as the simulated keepers need to know it."""

    url: str
    lease_seconds = LEASE_SECONDS["etcd"]

    async def connect(self) -> EtcdCoordination:
        return EtcdCoordination(EtcdAddress.parse(self.url), "agreement", TIMEOUT_SECONDS)


Service = MemoryService | EtcdService
Client = RemoteCoordination | EtcdCoordination
REGISTERING = {MemoryService: 100, EtcdService: 10}
"""Hosts of one process that register at the same time. More would only wait for their own process."""


@dataclass(frozen=True)
class Formation:
    """One formation: its time, CPU seconds and traffic."""

    form_s: float
    form_server_cpu_s: float
    """CPU seconds of the server's process."""
    form_hosts_cpu_s: float
    """CPU seconds of the processes that simulate the hosts, their start included."""
    bytes_per_host: int


@dataclass(frozen=True)
class SteadyState:
    """What follows a formation."""

    beat_cpu: float
    lost_seen_s: float
    false_losses: int
    """Hosts that were reported lost although they were not stopped: this machine was too busy to renew their leases."""


def registration(name: str) -> str:
    """A registration of realistic size."""
    return json.dumps(
        {"host": name, "address": "10.0.0.1:40123", "devices": "8xH100", "torch": "2.13.0", "job": "f" * 64}
    )


# The processes that simulate hosts


@dataclass(frozen=True)
class HostsReport:
    """What one process saw when its hosts had formed."""

    started: float
    finished: float
    most_bytes: int
    cpu_s: float


def simulate_hosts(service: Service, names: Sequence[str], pipe: Pipe) -> None:
    """Entry point of a process: wait for the start, form, report, and renew leases until told to end."""
    raise_open_files()
    gc.disable()  # collecting the garbage of thousands of keepers at once is no work of a real one
    asyncio.run(_simulate_hosts(service, names, pipe))


async def _simulate_hosts(service: Service, names: Sequence[str], pipe: Pipe) -> None:
    loop = asyncio.get_running_loop()
    pipe.send("ready")
    await loop.run_in_executor(None, pipe.recv)
    first = time.monotonic()
    registering = asyncio.Semaphore(REGISTERING[type(service)])
    clients = await asyncio.gather(*(form_host(service, name, registering) for name in names))
    received = max(client.received_bytes for client in clients)
    pipe.send(HostsReport(first, time.monotonic(), received, time.process_time()))
    await loop.run_in_executor(None, pipe.recv)
    os._exit(0)  # thousands of connections are closed by the kernel


async def form_host(service: Service, name: str, registering: asyncio.Semaphore) -> Client:
    """Register one host and wait for its assignment."""
    async with registering:
        client = await service.connect()
        assignments = await client.watch(f"assignments/{name}/")
        lease = await client.lease(service.lease_seconds)
        assert await client.create(f"hosts/{name}", registration(name), lease), f"{name} exists already"
    while not await anext(assignments):
        pass
    return client


# The processes of the server and the leader


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
    pipe.send((MemoryService(host, port, job_key), os.getpid()))
    await lead(LocalCoordination(server.state, server.clock), hosts, pipe)


def serve_etcd(hosts: int, pipe: Pipe) -> None:
    """Entry point of a process: the leader, and one member of etcd as its child."""
    asyncio.run(_serve_etcd(hosts, pipe))


async def _serve_etcd(hosts: int, pipe: Pipe) -> None:
    client_port, peer_port = free_port(), free_port()
    url, peer_url = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
        command = ["etcd", "--data-dir", folder, "--listen-client-urls", url, "--advertise-client-urls", url]
        command += ["--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url]
        command += ["--initial-cluster", f"default={peer_url}"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as etcd:
            service = EtcdService(url.replace("http", "etcd"))
            leader = await service.connect()
            try:
                await leader.get("leader")  # waits until etcd serves
                pipe.send((service, etcd.pid))
                await lead(leader, hosts, pipe)
            finally:
                etcd.kill()


async def lead(client: Coordination, hosts: int, pipe: Pipe) -> None:
    """Write an assignment for every host when all have registered; answer which are lost, and since when."""
    lost: dict[str, float] = {}
    ended = asyncio.Event()

    def answer() -> None:
        if pipe.recv() == "end":
            ended.set()
        pipe.send(lost)

    asyncio.get_running_loop().add_reader(pipe.fileno(), answer)
    following = asyncio.create_task(follow_hosts(client, hosts, lost))
    await ended.wait()
    following.cancel()


async def follow_hosts(client: Coordination, hosts: int, lost: dict[str, float]) -> None:
    registered: set[str] = set()
    assigned = False
    async for changes in await client.watch("hosts/"):
        for change in changes:
            name = change.key.removeprefix("hosts/")
            if change.value is None:
                lost[name] = time.monotonic()
            else:
                registered.add(name)
        if len(registered) == hosts and not assigned:
            assigned = True
            assignment = "x" * ASSIGNMENT_BYTES
            await asyncio.gather(*(client.put(f"assignments/{name}/1", assignment) for name in sorted(registered)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# Measuring


@contextmanager
def started(target: Callable[..., None], *arguments: Any) -> Iterator[tuple[BaseProcess, Pipe]]:
    """Start a process that talks over a pipe; kill it at the end of the block."""
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=target, args=(*arguments, theirs))
    process.start()
    theirs.close()  # so that reading from a process that has failed ends
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()


def measure(hosts: int, backend: str, steady: bool) -> tuple[Formation, SteadyState | None]:
    """Form once; with `steady`, also measure the renewals and the loss of hosts."""
    names = [f"host-{number:05d}" for number in range(hosts)]
    silent, others = names[: min(LOST_HOSTS, hosts // 10)], names[min(LOST_HOSTS, hosts // 10) :]
    with ExitStack() as stack:
        _, leader = stack.enter_context(started(serve_memory if backend == "memory" else serve_etcd, hosts))
        service, server = leader.recv()
        stack.callback(ask, leader, "end")
        groups = [silent, *(others[start::PROCESSES] for start in range(PROCESSES))]
        keepers = [stack.enter_context(started(simulate_hosts, service, group)) for group in groups]
        formation = form([pipe for _, pipe in keepers], server)
        if not steady:
            return formation, None
        beat_cpu = steady_cpu(server)
        seen, false_losses = lost_seen(leader, keepers[0][0], silent)
        return formation, SteadyState(beat_cpu, seen, false_losses)


def form(keepers: Sequence[Pipe], server: int) -> Formation:
    for pipe in keepers:
        pipe.recv()  # ready
    cpu = cpu_seconds(server)
    for pipe in keepers:
        pipe.send("start")
    reports: list[HostsReport] = [pipe.recv() for pipe in keepers]
    return Formation(
        form_s=max(report.finished for report in reports) - min(report.started for report in reports),
        form_server_cpu_s=cpu_seconds(server) - cpu,
        form_hosts_cpu_s=sum(report.cpu_s for report in reports),
        bytes_per_host=max(report.most_bytes for report in reports),
    )


def steady_cpu(server: int) -> float:
    time.sleep(max(LEASE_SECONDS.values()) / 2)
    cpu, start = cpu_seconds(server), time.monotonic()
    time.sleep(STEADY_SECONDS)
    return (cpu_seconds(server) - cpu) / (time.monotonic() - start)


def lost_seen(leader: Pipe, keeper: BaseProcess, silent: Sequence[str]) -> tuple[float, int]:
    """Stop the process of some hosts; return how long the leader took to see all of them lost, and how many others."""
    assert keeper.pid is not None
    os.kill(keeper.pid, signal.SIGSTOP)
    start = time.monotonic()
    while not set(silent) <= (lost := ask(leader, "lost")).keys():
        assert time.monotonic() < start + 60, f"{len(lost)} of {len(silent)} lost hosts were seen after 60 s"
        time.sleep(0.2)
    return max(lost[name] for name in silent) - start, len(lost.keys() - set(silent))


def ask(leader: Pipe, question: str) -> dict[str, float]:
    """Return the hosts that the leader has seen lost, with the times."""
    leader.send(question)
    lost: dict[str, float] = leader.recv()
    return lost


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has spent, in user and kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def raise_open_files() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=10_000, help="number of simulated hosts (at least 10)")
    parser.add_argument("--backend", choices=("memory", "etcd"), default="memory")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args()
    tenth, _ = measure(options.hosts // 10, options.backend, steady=False)
    formation, steady = measure(options.hosts, options.backend, steady=True)
    assert steady is not None
    growth = formation.form_s / tenth.form_s
    print(
        f"{options.hosts:,} hosts, {options.backend}: formed in {formation.form_s:.2f} s, "
        f"{growth:.1f} times the time of a tenth of them"
    )
    print(f"  CPU while forming: server {formation.form_server_cpu_s:.2f} s, hosts {formation.form_hosts_cpu_s:.2f} s")
    print(f"  most bytes received by one host: {formation.bytes_per_host:,}")
    lease = LEASE_SECONDS[options.backend]
    print(f"  renewing leases of {lease:g} s: {steady.beat_cpu:.3f} cores of the server")
    print(f"  loss of {min(LOST_HOSTS, options.hosts // 10)} hosts seen after {steady.lost_seen_s:.2f} s")
    if steady.false_losses:
        print(f"  {steady.false_losses} other hosts were reported lost: the machine was too busy to renew their leases")
    if options.json:
        figures = {"hosts": options.hosts, "backend": options.backend, **asdict(formation), **asdict(steady)}
        print(json.dumps({**figures, "growth": growth, "lease_s": lease}))


if __name__ == "__main__":
    main()
