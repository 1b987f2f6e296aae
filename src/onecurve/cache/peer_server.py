"""Gives other hosts of the job the files of this host's cache, also those that are still being fetched."""

import asyncio
import os
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from onecurve.cache.cache_folder import CacheFolder
from onecurve.cache.peers import PeerAnswer, PeerRequest
from onecurve.cache.remote_file import RemoteFile
from onecurve.coordination.authenticated_server import AcceptedConnection, AuthenticatedServer
from onecurve.coordination.channel import JOB_KEY_BYTES
from onecurve.coordination.sealed_socket import SealedSocket
from onecurve.coordination.threaded_connection import ThreadedConnection

_MAX_BYTES = 1 << 24

Progress = Callable[[RemoteFile], int]
"""Bytes of a file that are there, complete or not; asks for the file if it is not being fetched. Below 0: there is no
room for it."""


class PeerServer(AuthenticatedServer):
    """Serves files. Set `job_key` to the key of each generation."""

    def __init__(self, listener: socket.socket, folder: CacheFolder, progress: Progress) -> None:
        super().__init__(listener, secrets.token_bytes(JOB_KEY_BYTES))  # nobody's, until the hosts have met
        self._folder, self._progress = folder, progress

    def new_connection(self) -> AcceptedConnection:
        return ThreadedConnection(self, self._answer, "onecurve cached files")

    def serve_in_thread(self) -> None:
        """Accept connections from now on, in a thread of its own."""
        threading.Thread(target=asyncio.run, args=(self._serve(),), name="onecurve cache", daemon=True).start()

    async def _serve(self) -> None:
        self.start()
        await asyncio.Event().wait()

    def _answer(self, client: SealedSocket) -> None:
        request = msgspec.json.decode(client.receive(), type=PeerRequest)
        there = self._progress(request.file)
        end = min(there, request.begin + min(request.size, _MAX_BYTES))
        data = self._read(request.file.key, request.begin, end) if end > request.begin else b""
        is_gone = end > request.begin and not data
        client.send(msgspec.json.encode(PeerAnswer(len(data), is_declined=there < 0 or is_gone)))
        client.send_all(memoryview(data))

    def _read(self, key: str, begin: int, end: int) -> bytes:
        """Bytes of a file, which may be renamed at this moment; none if it is gone."""
        for path in (self._folder.part(key), self._folder.committed(key)):
            if (data := _read_at(path, begin, end)) is not None:
                return data
        return b""


def _read_at(path: Path, begin: int, end: int) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return os.pread(descriptor, end - begin, begin)
    finally:
        os.close(descriptor)
