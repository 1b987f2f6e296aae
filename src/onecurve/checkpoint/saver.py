"""Saves: a copy to host memory, then everything else behind the training's back.

All ranks write their own files. When all have, the first rank commits; where one could not, the save is given up on
all, the checkpoints before it stay, and the next look at `news` says why. What a rank does does not grow with their
number.
"""

import json
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from onecurve.checkpoint.hashed_json import CorruptedError, dump_hashed, load_hashed
from onecurve.checkpoint.manifest import (
    LARGEST_MANIFEST,
    LARGEST_ROOT,
    ROOT,
    Root,
    Standing,
    data_file,
    manifest_file,
)
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.snapshot import OptimizerState, Snapshot
from onecurve.checkpoint.store import Store, name_of
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.units import seconds_text
from onecurve.device.collectives import Group, broadcast_first_text
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor


@dataclass(frozen=True)
class SaveEvent:
    """How a save ended."""

    event: Literal["saved", "warning"]
    text: str


@dataclass(frozen=True)
class _Work:
    root: Root
    snapshot: Snapshot | None
    failure: str
    """What went wrong already, on this rank."""


class Saver:
    """One per rank; every rank must save at the same steps."""

    def __init__(
        self, store: Store, group: Group, device: Device, plan: Plan, job: dict[str, str], retention: Retention
    ) -> None:
        """`group`: all ranks, for this saver's own thread."""
        self._store, self._group, self._device = store, group, device
        self._plan, self._job, self._retention = plan, job, retention
        self._rank, self._ranks = (group.rank(), group.size()) if group else (0, 1)
        self._life = broadcast_first_text(group, secrets.token_hex(4) if self._rank == 0 else "")
        self._count = 0
        self._snapshot: Snapshot | None = None
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        # Kept waiting rather than started by each save: a thread that starts takes the interpreter from who started it.
        threading.Thread(target=self._run, name="onecurve-saver", daemon=True).start()
        self._events: deque[SaveEvent] = deque()
        self.saved_step = -1
        """Of the newest that exists; the same on all ranks once they have waited."""
        self.damaged: Collection[str] = ()
        """Checkpoints that were found so; they go when a new one exists."""

    def save(self, local_tensors: Sequence[LocalTensor], kept: OptimizerState, standing: Standing) -> None:
        """Returns when the copy is made. One save at a time: waits for the one before. What goes wrong is told by
        `news`, here too: the other ranks have to know of it."""
        self.wait()
        failure = ""
        try:
            if self._snapshot is None or not self._snapshot.is_of(local_tensors, kept):
                self._snapshot = None  # its memory goes first
                self._snapshot = Snapshot(local_tensors, kept, self._device)
            self._snapshot.take(kept)
        except Exception as error:
            failure = _text(error) or type(error).__name__
        token = f"{self._life}{self._count:08x}"
        self._count += 1
        self._idle.clear()
        self._work.put(_Work(Root(token, self._ranks, standing, self._plan, self._job), self._snapshot, failure))

    def wait(self) -> None:
        """Until the save under way has ended, well or not."""
        self._idle.wait()

    def close(self) -> None:
        """No save will come any more."""
        self._work.put(None)

    def take_events(self) -> list[SaveEvent]:
        """How saves ended since this was last asked."""
        told = []
        while self._events:
            told.append(self._events.popleft())
        return told

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                self._finish(work.root, work.snapshot, work.failure)
            except Exception as error:  # of the exchange: another rank is gone
                self._events.append(
                    SaveEvent("warning", f"step {work.root.standing.step} was not saved: {_text(error)}")
                )
            finally:
                del work  # a snapshot that is no longer needed must not be kept until the next save
                self._idle.set()

    def _finish(self, root: Root, snapshot: Snapshot | None, failure: str) -> None:
        begin = time.perf_counter()
        name = name_of(root.standing.step, root.token)
        failure = broadcast_first_text(self._group, failure) or self._by_first(partial(self._store.begin, name))
        if not failure:
            assert snapshot is not None
            failure = self._together(partial(self._write, name, root.token, snapshot))
        if not failure:
            failure = self._by_first(partial(self._commit, name, root))
        if failure:
            self._by_first(lambda: self._store.abandon(name))
            self._events.append(
                SaveEvent("warning", f"step {root.standing.step} was not saved: {failure}; earlier checkpoints stay")
            )
            return
        taken = seconds_text(time.perf_counter() - begin)
        self._events.append(SaveEvent("saved", f"step {root.standing.step}, in {taken} beside the training"))
        self.saved_step = root.standing.step
        failure = self._tidy(name, root)
        if failure:
            self._events.append(SaveEvent("warning", f"old checkpoints could not be removed: {failure}"))

    def _commit(self, name: str, root: Root) -> None:
        sealed = dump_hashed(root)
        if len(sealed) > LARGEST_ROOT:
            raise OnecurveError(f"a root manifest of {len(sealed)} bytes, more than a reader takes")
        self._store.commit(name, sealed)

    def _write(self, name: str, token: str, snapshot: Snapshot) -> None:
        manifest, parts = snapshot.file(token, self._rank)
        if manifest.size:
            self._store.write(name, data_file(self._rank), parts)
        sealed = dump_hashed(manifest)
        if len(sealed) > LARGEST_MANIFEST:  # no reader would take it
            raise OnecurveError(f"a manifest of {len(sealed)} bytes; split the model over more ranks")
        self._store.write(name, manifest_file(self._rank), [sealed])

    def _tidy(self, newest: str, root: Root) -> str:
        """Remove what is no longer needed: the first rank decides, all share the work."""
        retired: list[tuple[str, int]] = []

        def retire() -> None:
            names = self._retention.unneeded(self._store.names(), newest, root.standing.best_step, self.damaged)
            for name in names:
                retired.append((name, self._ranks_of(name)))
                self._store.retire(name)

        failure = self._by_first(retire)
        for name, ranks in json.loads(
            broadcast_first_text(self._group, json.dumps(retired) if self._rank == 0 else "")
        ):
            own = range(self._rank, ranks, self._ranks)
            files = [file for rank in own for file in (data_file(rank), manifest_file(rank))]
            failure = self._together(partial(self._store.erase, name, files)) or failure
        return self._by_first(self._store.clear) or failure

    def _ranks_of(self, name: str) -> int:
        try:
            return load_hashed(Root, self._store.read(name, ROOT, LARGEST_ROOT), name).ranks
        except (CorruptedError, OSError):
            return 0  # what is left of it goes with the folder

    def _by_first(self, act: Callable[[], None]) -> str:
        return self._together(act if self._rank == 0 else lambda: None)

    def _together(self, act: Callable[[], None]) -> str:
        """Do it on every rank; on all of them, what went wrong on the first where something did."""
        try:
            act()
            failure = ""
        except OSError as error:
            failure = f"{error.filename or self._store.where}: {error.strerror or error}"
        except Exception as error:  # this thread has nobody above it
            failure = _text(error)
        return broadcast_first_text(self._group, failure)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, OnecurveError) else f"{type(error).__name__}: {error}"
