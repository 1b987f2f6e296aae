"""A host's cache, as one of its ranks uses it."""

import atexit
import multiprocessing
import os
import secrets
import signal
import socket
import weakref
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_int64
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawValue
from pathlib import Path

from onecurve.cache.cache_counts import CacheCounts, CacheUse
from onecurve.cache.cache_folder import CacheFolder
from onecurve.cache.cached_files import CachedFiles
from onecurve.cache.fetcher import Fetcher
from onecurve.cache.needs import Needs
from onecurve.cache.peer_server import PeerServer
from onecurve.cache.peers import Peers
from onecurve.coordination.channel import JOB_KEY_BYTES
from onecurve.describe.errors import OnecurveError
from onecurve.describe.units import bytes_text
from onecurve.device.parent_process import die_with_parent


class HostCache:
    """The cache of this host. Its first rank starts the process that fills it, before it has threads."""

    def __init__(self, path: str, limit: int, peers: bool) -> None:
        """`peers`: the hosts of the job give each other their files."""
        self._folder, self._limit = CacheFolder(Path(path)), limit
        self._counts, self._position = CacheCounts(), RawValue(c_int64, 0)
        self._control: Connection | None = None
        self._address: tuple[str, int] | None = None
        self.has_peers = peers
        self.files = CachedFiles(self._folder, self._counts, waits=not peers)

    def start(self, needs: Needs, window_bytes: int, own_address: str) -> None:
        """Start the process that fetches files; only the first rank of a host does. `window_bytes`: of files that are
        needed at the same time. `own_address`: at which other hosts reach this one."""
        if self._limit < window_bytes:
            raise OnecurveError(
                f"Cache: size {bytes_text(self._limit)} is too small: files of {bytes_text(window_bytes)} are needed "
                "at the same time; give it more, or the source a smaller window"
            )
        fetcher = Fetcher(self._folder, self._limit, needs, lambda: self._position.value, self._counts)
        listener = socket.create_server((own_address, 0)) if self.has_peers else None
        if listener is not None:
            self._address = own_address, int(listener.getsockname()[1])
        context = multiprocessing.get_context("fork")
        received, self._control = context.Pipe(duplex=False)
        process = context.Process(
            target=_fill, args=(fetcher, listener, received, os.getpid()), name="onecurve cache", daemon=True
        )
        process.start()
        fetcher.disown()
        received.close()
        if listener is not None:
            listener.close()
        assert process.pid is not None
        end = weakref.finalize(self, _end, os.getpid(), process.pid)
        end.atexit = False
        atexit.register(end)

    @property
    def card(self) -> str:
        """What the other hosts must know about this one; empty on all ranks but the first of a host."""
        if self._address is None:
            return ""
        host, port = self._address
        return f"{host} {port} {secrets.token_hex(JOB_KEY_BYTES)}"

    def meet(self, cards: Sequence[str], own_rank: int) -> None:
        """Learn who the hosts of the job are. `cards`: of all ranks."""
        hosts = {rank: card.split() for rank, card in enumerate(cards) if card.strip()}
        if self._control is not None and hosts:
            addresses = [(host, int(port)) for host, port, _ in hosts.values()]
            key = bytes.fromhex(next(iter(hosts.values()))[2])
            self._control.send(Peers(addresses, [*hosts].index(own_rank), key))
        self.files.waits = True

    def reach(self, position: int) -> None:
        """The training has come to this position of the sample order."""
        self._position.value = position

    @property
    def use(self) -> CacheUse:
        return self._counts.use()


def _fill(fetcher: Fetcher, listener: socket.socket | None, control: Connection, rank_pid: int) -> None:
    """Fill the cache, in a process of its own, which lives as long as its rank."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the rank decides when to stop
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(rank_pid)
    if listener is not None:
        server = PeerServer(listener, fetcher.folder, fetcher.there)
        server.serve_in_thread()
        while True:
            peers = control.recv()  # of the first generation, before anything is fetched
            server.job_key = peers.key
            fetcher.meet(peers)
            fetcher.run(until=control.poll)
    fetcher.run()


def _end(rank_pid: int, pid: int) -> None:
    """End the process that fetches: a file that is being fetched is lost, and nothing else. Only the rank that has
    started it does so, not a process that was forked from that."""
    if os.getpid() == rank_pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
