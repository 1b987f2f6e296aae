"""A run's checkpoints: where they are, which one to go on from, when the next is due."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onecurve.checkpoint.fsspec_store import FsspecStore
from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.manifest import Root, Standing
from onecurve.checkpoint.read_plan import States
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.saver import SaveEvent, Saver
from onecurve.checkpoint.snapshot import OptimizerState
from onecurve.checkpoint.store import Store, empty
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.collectives import broadcast_first_text, new_host_group
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor
from onecurve.device.world import World
from onecurve.job.save import Save
from onecurve.runs.folder import CHECKPOINTS, RunLock
from onecurve.runtime.fingerprint import refuse_changed


@dataclass(frozen=True)
class Resumed:
    """What a run goes on from."""

    root: Root
    states: States
    text: str

    @property
    def standing(self) -> Standing:
        return self.root.standing


def store_at(where: str) -> Store:
    where = where.removeprefix("file://")
    return FsspecStore(where) if "://" in where else LocalStore(Path(where))


def claim_for(out: Path, save: Save | None) -> RunLock:
    """On the folders of this host that a run writes into; who shares a place elsewhere is not seen."""
    to = save.to if save is not None else None
    return RunLock(out, *([Path(to.removeprefix("file://"))] if to is not None and "://" not in to else []))


class Checkpoints:
    """Every rank has one; all ranks call its methods together."""

    def __init__(self, save: Save, out: Path, world: World, device: Device, plan: Plan, job: Mapping[str, str]) -> None:
        self._save, self._world, self._plan, self._job = save, world, plan, dict(job)
        self._store = store_at(save.to or str(out / CHECKPOINTS))
        self._group = new_host_group()
        retention = Retention(save.last, save.keep_every, save.best)
        self._saver = Saver(self._store, self._group, device, plan, self._job, retention)
        self._last = time.monotonic()
        self._told: list[SaveEvent] = []
        self.begun_step = -1
        """Of the newest save, which may be under way."""

    def begin_anew(self) -> None:
        """Remove what is there."""
        if self._world.rank == 0:
            try:
                empty(self._store)
            except OSError as error:
                raise OnecurveError(
                    f"{self._store.where}: cannot be emptied ({error.strerror or error}); give another place"
                ) from None

    def resume(self, local_tensors: Callable[[], Sequence[LocalTensor]]) -> Resumed | None:
        """Fill the pieces from the newest that all ranks can read and verify."""
        names = json.loads(
            broadcast_first_text(self._group, json.dumps(self._names()) if self._world.rank == 0 else "")
        )
        failures: list[str] = []
        for name in reversed(names):
            trouble = damage = ""
            found = None
            try:
                found = self._read(name, local_tensors())
            except CorruptedError as error:
                damage = str(error)
            except OSError as error:
                trouble = f"{error.filename or name}: {error.strerror or error}"
            trouble = broadcast_first_text(self._group, trouble)
            if trouble:  # not to be passed over: what lies past the next save is removed
                raise OnecurveError(f"{self._store.where}: cannot be read now ({trouble}); start again when it can")
            damage = broadcast_first_text(self._group, damage)
            if not damage and found is not None:
                self._saver.damaged = names[names.index(name) + 1 :]
                self._told += [SaveEvent("warning", each) for each in failures]
                self.begun_step = self._saver.saved_step = found.standing.step
                return found
            failures.append(f"checkpoint passed over: {damage}")
        if names:
            raise OnecurveError(
                f"{self._store.where}: none of its {len(names)} checkpoints can be read ({failures[0]}); bring one "
                "back, or add --fresh to train anew"
            )
        return None

    def _read(self, name: str, local_tensors: Sequence[LocalTensor]) -> Resumed:
        checkpoint = Checkpoint(self._store, name)
        refuse_changed(checkpoint.root.job, self._job, checkpoint.where)
        states = checkpoint.load(local_tensors, self._plan.mesh, self._world.rank)
        text = f"from step {checkpoint.root.standing.step}, {checkpoint.where}"
        return Resumed(checkpoint.root, states, text)

    def due(self, step: int) -> bool:
        """By the count of steps, so that all ranks know; see `overdue` for minutes."""
        return any(every is not None and step % every == 0 for every in (self._save.every, self._save.keep_every))

    def overdue(self) -> bool:
        """By the clock of the first rank, which tells the others with the next step."""
        waited = time.monotonic() - self._last
        return self._world.rank == 0 and self._save.every is None and waited > self._save.minutes * 60

    def save(
        self, local_tensors: Callable[[], Sequence[LocalTensor]], kept: OptimizerState, standing: Standing
    ) -> None:
        """Once per step, and once more where that failed."""
        if standing.step == self.begun_step:
            self._saver.wait()
            if self._saver.saved_step == standing.step:
                return
        self._last, self.begun_step = time.monotonic(), standing.step
        self._saver.save(local_tensors(), kept, standing)

    def take_events(self) -> list[SaveEvent]:
        told, self._told = [*self._told, *self._saver.take_events()], []
        return told

    def wait(self) -> None:
        self._saver.wait()

    def close(self) -> None:
        self._saver.close()

    def _names(self) -> list[str]:
        try:
            self._store.clear()
            return self._store.names()
        except OSError as error:
            raise OnecurveError(f"{self._store.where}: cannot be read ({error.strerror or error})") from None
