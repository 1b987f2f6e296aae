"""The row servers of a job on this host: processes, and the service through which they agree."""

import asyncio
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onecurve.coordination.channel import JOB_KEY_BYTES
from onecurve.coordination.server import Server
from onecurve.describe.convert import to_json
from onecurve.describe.row_servers import RowServerAddress, ServerOrder
from onecurve.launch.process import status_text

_LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.05
_SHORT_SECONDS = 5.0
"""One that ends sooner than this is replaced only then, so that servers that cannot run are not started in a loop."""


@dataclass
class _Started:
    name: str
    process: subprocess.Popen[bytes]
    time: float = field(default_factory=time.monotonic)


class LocalRowServers:
    """Servers that live as long as this process. One that dies is replaced."""

    program: Sequence[str] = ("-m", "onecurve.servers.row_process")
    """What Python runs as a server."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say`: told that a server was lost."""
        self._say = say
        self._key = secrets.token_bytes(JOB_KEY_BYTES)
        self._service: Server | None = None
        self._address: RowServerAddress | None = None
        self._servers: list[_Started] = []
        self._names = 0
        self._watching: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    def start(self, count: int) -> RowServerAddress:
        """Have at least so many servers; return where they are found."""
        if self._address is None:
            listener = socket.create_server((_LOOPBACK, 0))
            self._service = Server(listener, self._key)
            self._service.start()
            self._address = RowServerAddress(f"{_LOOPBACK}:{listener.getsockname()[1]}", self._key.hex())
            self._watching = asyncio.create_task(self._watch())
        while len(self._servers) < count:
            self._servers.append(self._start(self._address))
        return self._address

    def close(self) -> None:
        """End all servers. Their rows are gone."""
        if self._watching is not None:
            self._watching.cancel()
        for server in self._servers:
            server.process.kill()
            server.process.wait()
        self._servers.clear()
        if self._service is not None:
            self._closing = asyncio.create_task(self._service.close())
            self._service = None

    def _start(self, address: RowServerAddress) -> _Started:
        self._names += 1
        name = f"server{self._names}"
        order = ServerOrder(name=name, machine=name, listen=_LOOPBACK, address=address, parent=os.getpid())
        process = subprocess.Popen(
            [sys.executable, *self.program],
            stdin=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(to_json(order).encode() + b"\n")
        return _Started(name, process)

    async def _watch(self) -> None:
        """Replace servers that have ended."""
        assert self._address is not None
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            for place, server in enumerate(self._servers):
                status = server.process.poll()
                if status is None or time.monotonic() - server.time < _SHORT_SECONDS:
                    continue
                new = self._servers[place] = self._start(self._address)
                self._say(f"lost row server {server.name} ({status_text(status)}); {new.name} takes its place")
