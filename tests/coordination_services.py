"""Servers and etcd clusters for the tests of the coordination between hosts."""

import asyncio
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from onecurve.coordination.client import RemoteCoordination
from onecurve.coordination.coordination import Coordination
from onecurve.coordination.etcd import EtcdCoordination
from onecurve.coordination.etcd_address import EtcdAddress
from onecurve.coordination.etcd_gateway import EtcdGateway
from onecurve.coordination.local import LocalCoordination
from onecurve.coordination.server import Server

TIMEOUT = 30.0
"""Seconds for one request: the machine may be busy."""
JOB_KEY = secrets.token_bytes(32)

Connect = Callable[[], Awaitable[Coordination]]


def bound_socket() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener


@asynccontextmanager
async def serving(job_key: bytes = JOB_KEY) -> AsyncIterator[Server]:
    server = Server(bound_socket(), job_key)
    server.start()
    try:
        yield server
    finally:
        await server.close()


async def connected(server: Server, job_key: bytes = JOB_KEY, timeout: float = TIMEOUT) -> RemoteCoordination:
    host, _, port = server.address.rpartition(":")
    return await RemoteCoordination.connect(host, int(port), job_key, timeout)


@dataclass
class EtcdCluster:
    """Real members of etcd on loopback, in a temporary folder."""

    folder: Path
    members: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    tls: bool = False

    def url(self) -> str:
        return f"etcd{'s' * self.tls}://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def environment(self) -> dict[str, str]:
        """The variables by which a client trusts the members' own certificates."""
        return {"ETCDCTL_CACERT": str(self.folder / "e0" / "fixtures" / "client" / "cert.pem")} if self.tls else {}

    def address(self) -> EtcdAddress:
        return EtcdAddress.parse(self.url(), self.environment())

    def start(self, count: int) -> None:
        self.ports = free_ports(count)
        peers = free_ports(count)
        initial = ",".join(f"e{number}=http://127.0.0.1:{port}" for number, port in enumerate(peers))
        for number, (client, peer) in enumerate(zip(self.ports, peers, strict=True)):
            options = {
                "--name": f"e{number}",
                "--data-dir": str(self.folder / f"e{number}"),
                "--listen-client-urls": f"http{'s' * self.tls}://127.0.0.1:{client}",
                "--advertise-client-urls": f"http{'s' * self.tls}://127.0.0.1:{client}",
                "--listen-peer-urls": f"http://127.0.0.1:{peer}",
                "--initial-advertise-peer-urls": f"http://127.0.0.1:{peer}",
                "--initial-cluster": initial,
            }
            command = ["etcd", "--unsafe-no-fsync", "--logger", "zap"]
            command += ["--auto-tls"] * self.tls + [word for pair in options.items() for word in pair]
            with (self.folder / f"e{number}.log").open("wb") as log:
                self.members.append(subprocess.Popen(command, stdout=log, stderr=log))

    def stop(self) -> None:
        for member in self.members:
            member.kill()
            member.wait()

    def wait_until_serving(self) -> None:
        while self.tls and not Path(self.environment()["ETCDCTL_CACERT"]).exists():
            time.sleep(0.05)
        gateway = EtcdGateway(self.address(), 60.0)
        gateway.call("/v3/kv/range", {"key": "AA=="})
        gateway.close()

    def leader(self) -> int:
        """Index of the member that leads the others."""
        for number, port in enumerate(self.ports):
            gateway = EtcdGateway(EtcdAddress.parse(f"etcd://127.0.0.1:{port}", {}), 30.0)
            status = gateway.call("/v3/maintenance/status", {})
            gateway.close()
            if status["leader"] == status["header"]["member_id"]:
                return number
        raise AssertionError("no member leads")


def free_ports(count: int) -> list[int]:
    sockets = [bound_socket() for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def running_etcd(folder: Path, count: int, tls: bool = False) -> Iterator[EtcdCluster]:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (Debian package etcd-server)")
    cluster = EtcdCluster(folder, tls=tls)
    try:
        cluster.start(count)
        cluster.wait_until_serving()
        yield cluster
    finally:
        cluster.stop()


class Backend:
    """A coordination service; `run` gives a test a function that connects to it as one more host."""

    def __init__(self, name: str, etcd: EtcdCluster | None) -> None:
        self.name, self._etcd = name, etcd
        self.lease_seconds = 2.0 if name == "etcd" else 1.0  # etcd has no shorter ones

    def run(self, scenario: Callable[[Connect], Awaitable[None]]) -> None:
        asyncio.run(self._run(scenario))

    async def _run(self, scenario: Callable[[Connect], Awaitable[None]]) -> None:
        opened: list[Coordination] = []
        name = secrets.token_hex(4)
        async with serving() as server:

            async def connect() -> Coordination:
                opened.append(await self._open(server, name))
                return opened[-1]

            try:
                await asyncio.wait_for(scenario(connect), 120)
            finally:
                for client in opened:
                    await client.close()

    async def _open(self, server: Server, name: str) -> Coordination:
        if self._etcd is not None:
            return EtcdCoordination(self._etcd.address(), name, TIMEOUT)
        return LocalCoordination(server.state, server.clock) if self.name == "local" else await connected(server)
