"""The process that fills a host's cache: fetches what is needed next, and removes what is needed last."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import IO

import numpy as np
import xxhash

from onecurve.cache.cache_counts import CacheCounts
from onecurve.cache.cache_folder import CacheFolder
from onecurve.cache.eviction import NEVER, URGENT, Room
from onecurve.cache.needs import Needs
from onecurve.cache.peers import PeerConnection, Peers
from onecurve.cache.remote_file import RemoteFile
from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import BadFileError
from onecurve.formats.storage import Storage

_BLOCK_BYTES = 1 << 23
_AT_ONCE = 4
"""Files that are fetched ahead at the same time. Those that a reader or another host waits for come in addition."""
_POLL_SECONDS = 0.02
_MEETING_SECONDS = 10.0
"""Hosts learn who the others are one after the other: for so long, one that turns this one away is asked again."""
_PEER_SECONDS = 60.0
"""A host that has had nothing new of a file for so long is asked no more."""
_SOON = 1024
"""A file that a reader asks for is looked for among so many that are needed next."""
_PLAN_SECONDS = 0.05
_PLAN_SHARE = 20
"""The order of the files is computed again after so many times the time that this takes."""


class Fetcher:
    """Fills a cache. `step` is called again and again; files are fetched by threads."""

    def __init__(
        self, folder: CacheFolder, limit: int, needs: Needs, position: Callable[[], int], counts: CacheCounts
    ) -> None:
        """`limit`: bytes. `position`: of the sample that the training has reached."""
        self.folder, self._needs, self._position, self._counts = folder, needs, position, counts
        self._peers: Peers | None = None
        self._met_at = 0.0
        self._owned: IO[bytes] = folder.own()
        self._room = Room(limit, folder.sizes())
        self._numbers: dict[str, int] = {}
        self._complete: set[str] = set()
        self._mutex = threading.Lock()
        self._progress: dict[str, int] = {}
        """Bytes of each file that is being fetched."""
        self._failed: set[str] = set()
        self._asked: dict[str, RemoteFile] = {}
        """By other hosts."""
        self._declined: set[str] = set()
        self._ended: list[tuple[RemoteFile, str, str]] = []
        """Fetched files: why it failed, and what kind of failure it is; empty if it did not."""
        self._storages: dict[str, Storage] = {}
        self._planned_at, self._plan_pause, self._planned_position = -1e9, _PLAN_SECONDS, -1
        self._trained_position = self._read_position = 0
        self._uses = np.zeros(0, np.int64)
        self._queue = np.zeros(0, np.int64)
        self._next = 0
        self._is_full = False
        """The next file in the queue has no room, and nothing has changed since that was found."""

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Fetch files until the process is killed, or `until` returns true."""
        self._find_left()
        while not until():
            self.step()
            time.sleep(_POLL_SECONDS)

    def meet(self, peers: Peers) -> None:
        """Ask these hosts for files from now on."""
        self._peers, self._met_at = peers, time.monotonic()

    def disown(self) -> None:
        """Leave the cache to the process that was forked from this one."""
        self._owned.close()

    def step(self) -> None:
        """Look at what has changed, and begin to fetch files."""
        self._note_ended()
        self._plan()
        for file in self.folder.wishes():
            self._note_wish(file.key)
            if file.key in self._complete and not self.folder.has(file):  # somebody has removed it
                self._forget(file.key)
            if file.key in self._complete or file.key in self._failed:
                self.folder.settle(file.key)
            elif file.key not in self._progress and not self._begin(file, URGENT) and not self._progress:
                self.folder.settle(file.key, _failure(f"{file.name}: {self._too_small(file)}", "not read"))
        with self._mutex:
            asked, self._asked = self._asked, {}
        for key, file in asked.items():
            self._find_number(key)
            if not self._is_known(key) and not self._begin(file, self._next_use(key)):
                self._declined.add(key)
        while len(self._progress) < _AT_ONCE and self._next < len(self._queue) and not self._is_full:
            number = int(self._queue[self._next])
            file = self._needs.file(number)
            if not self._is_known(file.key):
                self._is_full = not self._begin(file, int(self._uses[number]))
                if self._is_full:
                    break
                self._numbers[file.key] = number
            self._next += 1

    def _is_known(self, key: str) -> bool:
        """True if a file is there, is on its way, or cannot be fetched."""
        return key in self._complete or key in self._progress or key in self._failed

    def there(self, file: RemoteFile) -> int:
        """Bytes of a file that another host can have; below 0 if there is no room for it. Called by other threads."""
        key = file.key
        if key in self._complete:
            return file.size
        with self._mutex:
            if key in self._failed:
                return -1
            if key in self._progress:
                return self._progress[key]
            if key not in self._declined:
                self._asked[key] = file
        return -1 if key in self._declined else 0

    def _find_left(self) -> None:
        """Find the files that an earlier run has left, and that this one needs."""
        for number in range(self._needs.count) if self._room.is_taken and not self._numbers else ():
            file = self._needs.file(number)
            if file.key in self._room and self.folder.has(file):
                self._numbers[file.key] = number
                self._complete.add(file.key)

    def _plan(self, at_once: bool = False) -> None:
        """Order all files by when they are needed next, unless that was done a moment ago."""
        now, trained = time.monotonic(), self._position()
        if trained < self._trained_position:  # it continues from a checkpoint
            self._read_position = 0
        self._trained_position = trained
        position = max(trained, self._read_position)
        if position == self._planned_position or (now - self._planned_at < self._plan_pause and not at_once):
            return
        self._uses = self._needs.next_uses(position)
        self._queue, self._next, self._is_full = np.argsort(self._uses, kind="stable"), 0, False
        self._declined.clear()
        self._planned_position, self._planned_at = position, time.monotonic()
        self._plan_pause = max(_PLAN_SECONDS, _PLAN_SHARE * (self._planned_at - now))

    def _note_wish(self, key: str) -> None:
        """Learn from a wish where readers are. They are ahead of the training, and need the files that they have open
        no more: those of earlier windows can go."""
        number = self._find_number(key)
        if number is None or number >= self._needs.ordered:
            return
        later = self._uses[: self._needs.ordered]
        later = later[later > self._planned_position]
        if len(later) and self._uses[number] == later.min():  # of the next window; all else is no sign of progress
            self._read_position = int(self._uses[number])
            self._plan(at_once=True)

    def _find_number(self, key: str) -> int | None:
        """Look for a file among those that are needed next."""
        if key not in self._numbers and not self._is_known(key):
            found = (number for number in self._queue[:_SOON].tolist() if self._needs.file(number).key == key)
            if (number := next(found, None)) is not None:
                self._numbers[key] = number
        return self._numbers.get(key)

    def _next_use(self, key: str) -> int:
        return int(self._uses[self._numbers[key]]) if key in self._numbers else NEVER

    def _begin(self, file: RemoteFile, use: int) -> bool:
        """Begin to fetch a file; False if there is no room for it."""
        removed = self._room.make(file.size, use, self._next_use, self._progress)
        if removed is None:
            return False
        for key in removed:
            self._forget(key)
        self._room.add(file.key, file.size)
        with self._mutex:
            self._progress[file.key] = 0
        threading.Thread(target=self._fetch, args=(file,), name="onecurve fetch", daemon=True).start()
        return True

    def _forget(self, key: str) -> None:
        """Remove a file."""
        self._complete.discard(key)
        self._numbers.pop(key, None)
        self._room.remove(key)
        self.folder.remove(key)
        self._is_full = False

    def _note_ended(self) -> None:
        with self._mutex:
            ended, self._ended = self._ended, []
        for file, why, kind in ended:
            if why:
                self._failed.add(file.key)
                self._room.remove(file.key)
                self.folder.part(file.key).unlink(missing_ok=True)
                self.folder.settle(file.key, _failure(why, kind))
                print(f"Cache: {why}", file=sys.stderr, flush=True)
                self._is_full = False
            else:
                self._complete.add(file.key)
            with self._mutex:
                del self._progress[file.key]

    def _fetch(self, file: RemoteFile) -> None:
        """Fetch one file, in a thread."""
        why = kind = ""
        try:
            if not self._write(file, from_peers=True) and not self._write(file, from_peers=False):
                raise BadFileError(f"{file.name}: it was changed since it was indexed; call onecurve index again")
            self.folder.commit(file.key)
        except BadFileError as error:
            why, kind = str(error), "bad"
        except OnecurveError as error:
            why, kind = str(error), "not read"
        except Exception as error:  # of the disk; a thread that ends without a word would let readers wait forever
            why, kind = f"{file.name}: it cannot be cached ({error or type(error).__name__})", "not cached"
        with self._mutex:
            self._ended.append((file, why, kind))

    def _write(self, file: RemoteFile, from_peers: bool) -> bool:
        """Write the content of a file; False if it is not what its index says."""
        done, hashed = 0, xxhash.xxh3_64()
        peers = self._peers if from_peers else None
        part = self.folder.part(file.key)
        with part.open("wb") as target:

            def add(data: bytes) -> None:
                nonlocal done
                target.write(data)
                target.flush()
                hashed.update(data)
                done += len(data)
                with self._mutex:
                    self._progress[file.key] = done

            for host in peers.above(file.key) if peers is not None else ():
                if peers is not None and done < file.size:
                    self._read_from_peer(peers, host, file, lambda: done, add)
            while done < file.size:
                add(self._from_store(file, done, min(done + _BLOCK_BYTES, file.size)))
            os.fsync(target.fileno())
        return hashed.intdigest() == file.hash

    def _read_from_peer(
        self, peers: Peers, host: int, file: RemoteFile, done: Callable[[], int], add: Callable[[bytes], None]
    ) -> None:
        """Read the rest of a file from another host, or as much of it as it gives."""
        while done() < file.size:
            try:
                with PeerConnection(peers.addresses[host], peers.key) as peer:
                    self._read_from(peer, file, done, add)
                return
            except OSError:  # the host above it, or the store, has the file too
                if time.monotonic() - self._met_at > _MEETING_SECONDS:
                    return
                time.sleep(_POLL_SECONDS)

    def _read_from(
        self, peer: PeerConnection, file: RemoteFile, done: Callable[[], int], add: Callable[[bytes], None]
    ) -> None:
        progressed = time.monotonic()
        while done() < file.size:
            data = peer.read(file, done(), _BLOCK_BYTES)
            if data is None or time.monotonic() - progressed > _PEER_SECONDS:
                return
            if not data:
                time.sleep(_POLL_SECONDS)
                continue
            progressed = time.monotonic()
            self._counts.add(peer_bytes=len(data))
            add(data)

    def _from_store(self, file: RemoteFile, begin: int, end: int) -> bytes:
        storage = self._storages.setdefault(file.location, Storage(file.location))
        data = storage.between(file.path, begin, end)
        self._counts.add(store_bytes=len(data))
        return data

    def _too_small(self, file: RemoteFile) -> str:
        return (
            f"it has {file.size:,} bytes, and the cache of {self._room.limit:,} has no room for it beside the others "
            "that are needed now; give it more"
        )


def _failure(text: str, kind: str) -> str:
    """`kind`: `bad` if the file is not what its index says, `not cached` if readers can still read it, `not read`."""
    return f"{kind}: {text}"
