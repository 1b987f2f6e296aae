"""Saves checkpoints: a copy to host memory while the step waits, everything else in a background thread.

All ranks write their own files. When all have written, the first rank commits. If one rank fails, the save is given up
on all ranks, earlier checkpoints stay, and `take_events` says why. The work of a rank does not grow with their number.
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
    MAX_MANIFEST_BYTES,
    MAX_ROOT_BYTES,
    Root,
    SavePoint,
    data_file,
    manifest_file,
)
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.snapshot import OptimizerState, Snapshot
from onecurve.checkpoint.snapshot_slots import SnapshotKeeper, SnapshotSlots
from onecurve.checkpoint.store import ROOT, Store, name_of
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.units import seconds_text
from onecurve.device.collectives import Group, broadcast_first_text
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor


@dataclass(frozen=True)
class SaveEvent:
    """How a save ended, how often snapshots are taken now, or what else a rank has to say while it trains."""

    event: Literal["saved", "warning", "snapshots", "audit"]
    text: str


@dataclass(frozen=True)
class _SaveTask:
    root: Root
    snapshot: Snapshot | None
    failure: str
    """What already went wrong on this rank; empty if nothing did."""
    needed: str
    """Name of an earlier checkpoint that is kept until the next save; empty if none is."""


def new_generation(group: Group) -> str:
    """Return a random text of eight hexadecimal digits, the same on every rank of the group."""
    return broadcast_first_text(group, secrets.token_hex(4) if group is None or group.rank() == 0 else "")


class Saver:
    """One per rank. Every rank must save at the same steps."""

    def __init__(
        self,
        store: Store,
        group: Group,
        device: Device,
        plan: Plan,
        fingerprint: dict[str, str],
        retention: Retention,
        generation: str | None = None,
        keeper: SnapshotKeeper | None = None,
    ) -> None:
        """`group`: a process group of all ranks, used by the saver's thread alone. `fingerprint`: the job's.
        `generation`: what the tokens of its checkpoints begin with, see `new_generation`; None: a new one. `keeper`:
        keeps the memory of snapshots; None if nobody does."""
        self._store, self._group = store, group
        self._plan, self._fingerprint, self._retention = plan, fingerprint, retention
        self._rank, self._ranks = (group.rank(), group.size()) if group else (0, 1)
        self._generation = generation or new_generation(group)
        self._count = 0
        self._slots = SnapshotSlots(device, self._rank, keeper)
        self._tasks: queue.SimpleQueue[_SaveTask | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._events: deque[SaveEvent] = deque()
        self._damaged: Collection[str] = ()
        self._bases: dict[str, str] = {}
        """Checkpoints that are known to exist, each with the one on which it is based, or ""."""
        self.saved_step = -1
        """Step of the newest checkpoint that exists; equal on all ranks after `wait`."""
        self.saved_name = ""
        """Name of the newest checkpoint that this saver has saved; equal on all ranks after `wait`."""
        self.cpu_seconds = 0.0
        """CPU time of its thread so far."""
        # The thread waits for work instead of being started per save: starting a thread takes the interpreter lock away
        # from the training for several milliseconds.
        threading.Thread(target=self._run, name="onecurve-saver", daemon=True).start()

    def resume_after(self, step: int, damaged: Collection[str]) -> None:
        """Continue from the checkpoint of `step`; `damaged` ones are removed after the next successful save."""
        self.saved_step, self._damaged = step, damaged

    def save(
        self,
        local_tensors: Sequence[LocalTensor],
        optimizer_state: OptimizerState,
        point: SavePoint,
        needed: str = "",
    ) -> None:
        """Copy the tensors and return; the rest happens in the background. Waits for a save that is still running.

        `needed`: name of an earlier checkpoint that snapshots in memory refer to until the next save. Errors are
        reported by `take_events`, even those that happen here, because the other ranks must learn of them.
        """
        self.wait()
        failure, snapshot = "", None
        root = self._root(point)
        try:
            snapshot = self._slots.take(local_tensors, optimizer_state, root)
            self._slots.hold(snapshot)
        except Exception as error:  # reported to all ranks by the saver's thread
            failure = _text(error) or type(error).__name__
        self._idle.clear()
        self._tasks.put(_SaveTask(root, snapshot, failure, needed))

    def snapshot(self, local_tensors: Sequence[LocalTensor], optimizer_state: OptimizerState, point: SavePoint) -> None:
        """Copy the tensors to memory that the rank's keeper keeps. Does nothing if a save still reads from there."""
        self._slots.take(local_tensors, optimizer_state, self._root(point))

    @property
    def is_blocked(self) -> bool:
        """True if the next snapshot has to wait: a save still reads its memory, or the last one is on its way."""
        return self._slots.is_blocked

    @property
    def is_on_its_way(self) -> bool:
        """True while the newest snapshot is being copied to another host."""
        return self._slots.is_on_its_way

    def _root(self, point: SavePoint) -> Root:
        token = f"{self._generation}{self._count:08x}"
        self._count += 1
        return Root(token=token, ranks=self._ranks, point=point, plan=self._plan, job=self._fingerprint)

    def wait(self) -> None:
        """Wait until the running save has ended, successfully or not."""
        self._idle.wait()

    def close(self) -> None:
        """End the saver's thread, after the save that it is in."""
        self._tasks.put(None)
        self._slots.close()

    def take_events(self) -> list[SaveEvent]:
        """Return how saves ended since the last call."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                self._finish(task.root, task.snapshot, task.failure, task.needed)
            except Exception as error:  # a collective failed because another rank is gone; this thread has no caller
                step = task.root.point.step
                self._events.append(SaveEvent("warning", f"step {step} was not saved: {_text(error)}"))
            finally:
                del task  # a snapshot that was replaced must not stay in memory until the next save
                self._slots.hold(None)
                self.cpu_seconds = time.thread_time()
                self._idle.set()

    def _finish(self, root: Root, snapshot: Snapshot | None, failure: str, needed: str) -> None:
        begin, step = time.perf_counter(), root.point.step
        name = name_of(step, root.token)
        failure = broadcast_first_text(self._group, failure) or self._on_first_rank(partial(self._store.begin, name))
        if not failure:
            assert snapshot is not None
            failure = self._on_all_ranks(partial(self._write, name, root.token, snapshot))
        if not failure:
            failure = self._on_first_rank(partial(self._commit, name, root))
        if failure:
            self._on_first_rank(lambda: self._store.abandon(name))
            self._events.append(
                SaveEvent("warning", f"step {step} was not saved: {failure}; earlier checkpoints are unchanged")
            )
            return
        seconds = seconds_text(time.perf_counter() - begin)
        self._events.append(SaveEvent("saved", f"step {step}, in {seconds} in the background"))
        self.saved_step, self.saved_name = step, name
        failure = self._remove_unneeded(name, root, needed)
        if failure:
            self._events.append(SaveEvent("warning", f"old checkpoints could not be removed: {failure}"))

    def _commit(self, name: str, root: Root) -> None:
        content = dump_hashed(root)
        if len(content) > MAX_ROOT_BYTES:
            raise OnecurveError(f"the root manifest has {len(content)} bytes, but readers accept {MAX_ROOT_BYTES}")
        self._store.commit(name, content)

    def _write(self, name: str, token: str, snapshot: Snapshot) -> None:
        manifest, parts = snapshot.file(token, self._rank)
        if manifest.size:
            self._store.write(name, data_file(self._rank), parts)
        content = dump_hashed(manifest)
        if len(content) > MAX_MANIFEST_BYTES:
            raise OnecurveError(
                f"a manifest has {len(content)} bytes, but readers accept {MAX_MANIFEST_BYTES}; split the model over "
                "more ranks"
            )
        self._store.write(name, manifest_file(self._rank), [content])

    def _remove_unneeded(self, newest: str, root: Root, needed: str) -> str:
        """Remove checkpoints that are no longer needed: the first rank decides, all ranks share the work."""
        retired: list[tuple[str, int]] = []

        def retire() -> None:
            names = self._store.names()
            best_step = root.point.best_step
            for name in self._retention.unneeded(names, newest, best_step, self._damaged, self._base_of):
                if name != needed:
                    retired.append((name, self._ranks_of(name)))
                    self._store.retire(name)

        failure = self._on_first_rank(retire)
        for name, ranks in json.loads(
            broadcast_first_text(self._group, json.dumps(retired) if self._rank == 0 else "")
        ):
            own = range(self._rank, ranks, self._ranks)
            files = [file for rank in own for file in (data_file(rank), manifest_file(rank))]
            failure = self._on_all_ranks(partial(self._store.erase, name, files)) or failure
        return self._on_first_rank(self._store.clear) or failure

    def _base_of(self, name: str) -> str:
        """The checkpoint on which one is based, or "". Raises OSError if that cannot be known now."""
        if name not in self._bases:
            try:
                self._bases[name] = self._read_root(name).point.rows_base
            except CorruptedError:  # nothing can be loaded from it
                self._bases[name] = ""
        return self._bases[name]

    def _ranks_of(self, name: str) -> int:
        try:
            return self._read_root(name).ranks
        except (CorruptedError, OSError):
            return 0  # `Store.clear` removes what is left of it

    def _read_root(self, name: str) -> Root:
        return load_hashed(Root, self._store.read(name, ROOT, MAX_ROOT_BYTES), name)

    def _on_first_rank(self, act: Callable[[], None]) -> str:
        return self._on_all_ranks(act if self._rank == 0 else lambda: None)

    def _on_all_ranks(self, act: Callable[[], None]) -> str:
        """Call `act` on every rank; return, on all of them, the error of the first rank that failed, or ""."""
        try:
            act()
            failure = ""
        except OSError as error:
            failure = f"{error.filename or self._store.where}: {error.strerror or error}"
        except Exception as error:  # storage libraries raise what they like, and this thread has no caller
            failure = _text(error)
        return broadcast_first_text(self._group, failure)


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, OnecurveError) else f"{type(error).__name__}: {error}"
