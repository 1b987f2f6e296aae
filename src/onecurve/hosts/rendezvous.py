"""How this host reaches the others: through the run's folder, an address, or etcd."""

import asyncio
import getpass
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from onecurve.coordination.channel import JOB_KEY_BYTES
from onecurve.coordination.client import RemoteCoordination
from onecurve.coordination.clock import ServingClock
from onecurve.coordination.coordination import Coordination
from onecurve.coordination.etcd import EtcdCoordination
from onecurve.coordination.etcd_address import EtcdAddress
from onecurve.coordination.local import LocalCoordination
from onecurve.coordination.server import Server
from onecurve.coordination.state import KeyValueState
from onecurve.describe.errors import OnecurveError
from onecurve.device.file_limit import raise_file_limit
from onecurve.device.network import address_towards, own_address
from onecurve.hosts.meeting import call_meeting, end_meeting, join_meeting

_JOIN_SECONDS = 600.0
"""How long a host waits for the host that the others join."""
_NAME_SECONDS = 1.0
_FOREVER = 1e9


@dataclass(frozen=True)
class Met:
    """How this host has met the others."""

    coordination: Coordination
    """The service through which they agree."""
    address: str
    """Address at which the others reach this host."""
    place: str
    """Where they meet, for messages."""
    may_lead: bool
    """The host that serves in memory what the hosts agree on must lead: it then leaves last. In etcd, any may lead."""
    is_alone: bool = False
    """True if there is no other host."""

    @property
    def lease_seconds(self) -> float:
        """A host that does not answer for this time is lost.

        Nobody waits for a host that is alone: it may be stopped, for example by Ctrl-Z, and go on.
        """
        return _FOREVER if self.is_alone else 4.5


class Alone:
    """The rendezvous of a host that is the only one. Nothing listens."""

    @asynccontextmanager
    async def meet(self) -> AsyncIterator[Met]:
        async with _closing(LocalCoordination(KeyValueState(), ServingClock())) as coordination:
            yield Met(coordination, "127.0.0.1", "this host", may_lead=True, is_alone=True)


@dataclass(frozen=True)
class Rendezvous:
    """Where the hosts of a run meet."""

    file: Path
    """A file in the run's folder, which all hosts see if there is no `join`."""
    join: str | None = None
    """HOST:PORT of the leader, or etcd://HOST:PORT,…"""
    key_file: Path | None = None

    @property
    def place(self) -> str:
        return self.join or f"the folder {self.file.parent}"

    @asynccontextmanager
    async def meet(self) -> AsyncIterator[Met]:
        """Yield how this host has met the others."""
        if self.join is None:
            meeting = self._meet_in_folder()
        elif self.join.startswith(("etcd://", "etcds://")):
            meeting = self._meet_in_etcd(self.join)
        else:
            meeting = self._meet_at(*_host_and_port(self.join), read_key(self.key_file))
        async with meeting as met:
            yield met

    @asynccontextmanager
    async def _meet_in_folder(self) -> AsyncIterator[Met]:
        address = own_address()
        while True:
            listener = socket.create_server((address, 0))
            called = call_meeting(self.file, listener)
            if called is not None:
                async with _serving(listener, called.key) as coordination:
                    try:
                        yield Met(coordination, address, self.place, may_lead=True)
                    finally:
                        end_meeting(self.file, called)
                return
            listener.close()
            joined = await join_meeting(self.file)
            if joined is not None:
                async with _closing(joined):
                    yield Met(joined, address, self.place, may_lead=False)
                return

    @asynccontextmanager
    async def _meet_at(self, host: str, port: int, key: bytes) -> AsyncIterator[Met]:
        """The host that owns the address serves; the others connect to it."""
        await _wait_for_name(host, port)
        try:
            listener = socket.create_server((host, port))
        except OSError:  # not this host's address, or served by another keeper of this host
            joined = await _connect(host, port, key)
            async with _closing(joined):
                yield Met(joined, address_towards(host, port), self.place, may_lead=False)
            return
        async with _serving(listener, key) as coordination:
            yield Met(coordination, str(listener.getsockname()[0]), self.place, may_lead=True)

    @asynccontextmanager
    async def _meet_in_etcd(self, url: str) -> AsyncIterator[Met]:
        address = EtcdAddress.parse(url)
        name = re.sub(r"[^!-~]", "_", f"{getpass.getuser()}/{self.file.parent}")
        coordination = EtcdCoordination(address, name)
        async with _closing(coordination):
            yield Met(coordination, address_towards(*address.endpoints[0]), self.place, may_lead=True)


def read_key(path: Path | None) -> bytes:
    """Read the job's key from a file that only its owner can read."""
    if path is None:
        raise OnecurveError(
            "--join HOST:PORT needs --key-file: make one with 'head -c 32 /dev/urandom > job.key; chmod 600 job.key', "
            "and copy it to every host"
        )
    try:
        if path.stat().st_mode & 0o077:
            raise OnecurveError(f"{path}: other users can read it; run 'chmod 600 {path}'")
        key = path.read_bytes()
    except OSError as error:
        raise OnecurveError(f"{path}: cannot be read ({error.strerror})") from None
    if len(key) != JOB_KEY_BYTES:
        raise OnecurveError(
            f"{path}: it has {len(key)} bytes, and a key has {JOB_KEY_BYTES}; make one with 'head -c 32 /dev/urandom'"
        )
    return key


@asynccontextmanager
async def _serving(listener: socket.socket, key: bytes) -> AsyncIterator[Coordination]:
    raise_file_limit()
    server = Server(listener, key)
    server.start()
    coordination = LocalCoordination(server.state, server.clock)
    try:
        yield coordination
    finally:
        await coordination.close()
        await server.close()


@asynccontextmanager
async def _closing(coordination: Coordination) -> AsyncIterator[Coordination]:
    try:
        yield coordination
    finally:
        await coordination.close()


async def _wait_for_name(host: str, port: int) -> None:
    """Wait until the name of a host is known: that of a Kubernetes pod is only some time after its start."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _JOIN_SECONDS
    while True:
        try:
            await loop.getaddrinfo(host, port)
            return
        except socket.gaierror as error:
            if loop.time() > deadline:
                raise OnecurveError(f"--join {host}:{port}: no address is known for this name ({error})") from None
        await asyncio.sleep(_NAME_SECONDS)


async def _connect(host: str, port: int, key: bytes) -> RemoteCoordination:
    """Connect to the leader, which may be started later than this host."""
    return await RemoteCoordination.connect(host, port, key, patience=_JOIN_SECONDS)


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise OnecurveError(f"--join {text}: give HOST:PORT, or etcd://HOST:PORT,…")
    if ":" in host:
        raise OnecurveError(f"--join {text}: only names and IPv4 addresses can be used")
    return host, int(port)
