"""A run's checkpoints: where they are, which one to go on from, when the next is due."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local import LocalStore
from onecurve.checkpoint.manifest import Standing
from onecurve.checkpoint.remote import RemoteStore
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.saver import News, Saver
from onecurve.checkpoint.seal import DamagedError
from onecurve.checkpoint.snapshot import Kept
from onecurve.checkpoint.store import Store
from onecurve.checkpoint.wanted import States
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.device import Device
from onecurve.device.exchange import first_text, host_group
from onecurve.device.piece import Piece
from onecurve.device.world import World
from onecurve.job.save import Save
from onecurve.verbs.fingerprint import refuse_changed
from onecurve.verbs.folder import CHECKPOINTS


@dataclass(frozen=True)
class Resumed:
    """What a run goes on from."""

    standing: Standing
    states: States
    text: str


def store_at(where: str) -> Store:
    return RemoteStore(where) if "://" in where else LocalStore(Path(where))


def place_of(save: Save, out: Path) -> str:
    return str(out / CHECKPOINTS) if save.to is None else save.to


class Checkpoints:
    """Every rank has one; all ranks call its methods together."""

    def __init__(self, save: Save, out: Path, world: World, device: Device, plan: Plan, job: Mapping[str, str]) -> None:
        self._save, self._world, self._plan, self._job = save, world, plan, dict(job)
        self._store = store_at(place_of(save, out))
        self._group = host_group()
        retention = Retention(save.last, save.keep_every, save.best)
        self._saver = Saver(self._store, self._group, device, plan, self._job, retention)
        self._last = time.monotonic()
        self._told: list[News] = []
        self.saved_step = -1
        """Of the newest that was begun."""

    def begin_anew(self) -> None:
        """Remove what is there."""
        if self._world.rank == 0:
            for name in self._store.names():
                self._store.retire(name)
            self._store.clear()

    def resume(self, pieces: Callable[[], Sequence[Piece]]) -> Resumed | None:
        """Fill the pieces from the newest that all ranks can read and verify."""
        names = json.loads(first_text(self._group, json.dumps(self._names()) if self._world.rank == 0 else ""))
        failures: list[str] = []
        for name in reversed(names):
            failure, found = "", None
            try:
                checkpoint = Checkpoint(self._store, name)
                refuse_changed(checkpoint.root.job, self._job, checkpoint.where)
                found = checkpoint.root.standing, checkpoint.load(pieces(), self._plan.mesh, self._world.rank)
            except (DamagedError, OSError) as error:
                failure = str(error) or type(error).__name__
            failure = first_text(self._group, failure)
            if not failure and found is not None:
                self._saver.damaged = names[names.index(name) + 1 :]
                self._told += [News("warning", each) for each in failures]
                self.saved_step = found[0].step
                return Resumed(*found, f"from step {found[0].step}, {self._store.where}/{name}")
            failures.append(f"checkpoint passed over: {failure}")
        if names:
            raise OnecurveError(
                f"{self._store.where}: none of its {len(names)} checkpoints can be read ({failures[0]}); bring one "
                "back, or add --fresh to train anew"
            )
        return None

    def due(self, step: int) -> bool:
        """By the count of steps, so that all ranks know; see `overdue` for minutes."""
        return self._save.every is not None and step % self._save.every == 0

    def overdue(self) -> bool:
        """By the clock of the first rank, which tells the others with the next step."""
        waited = time.monotonic() - self._last
        return self._world.rank == 0 and self._save.every is None and waited > self._save.minutes * 60

    def save(self, pieces: Sequence[Piece], kept: Kept, standing: Standing) -> None:
        """Once per step; what cannot be saved at all is told as any failure is."""
        if standing.step == self.saved_step:
            return
        self._last, self.saved_step = time.monotonic(), standing.step
        try:
            self._saver.save(pieces, kept, standing)
        except OnecurveError as error:
            self._told.append(News("warning", f"step {standing.step} was not saved: {error}"))

    def news(self) -> list[News]:
        told, self._told = [*self._told, *self._saver.news()], []
        return told

    def wait(self) -> None:
        self._saver.wait()

    def _names(self) -> list[str]:
        try:
            self._store.clear()
            return self._store.names()
        except OSError as error:
            raise OnecurveError(f"{self._store.where}: cannot be read ({error.strerror or error})") from None
