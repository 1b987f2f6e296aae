"""A run's checkpoints: where they are, which one to go on from, when the next is due."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local import LocalStore
from onecurve.checkpoint.manifest import Root, Standing
from onecurve.checkpoint.remote import RemoteStore
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.saver import News, Saver
from onecurve.checkpoint.seal import DamagedError
from onecurve.checkpoint.snapshot import Kept
from onecurve.checkpoint.store import Store, empty
from onecurve.checkpoint.wanted import States
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.device import Device
from onecurve.device.exchange import first_text, host_group
from onecurve.device.piece import Piece
from onecurve.device.world import World
from onecurve.job.save import Save
from onecurve.verbs.fingerprint import refuse_changed
from onecurve.verbs.folder import CHECKPOINTS, Claim


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
    return RemoteStore(where) if "://" in where else LocalStore(Path(where))


def claim_for(out: Path, save: Save | None) -> Claim:
    """On the folders of this host that a run writes into; who shares a place elsewhere is not seen."""
    to = save.to if save is not None else None
    return Claim(out, *([Path(to.removeprefix("file://"))] if to is not None and "://" not in to else []))


class Checkpoints:
    """Every rank has one; all ranks call its methods together."""

    def __init__(self, save: Save, out: Path, world: World, device: Device, plan: Plan, job: Mapping[str, str]) -> None:
        self._save, self._world, self._plan, self._job = save, world, plan, dict(job)
        self._store = store_at(save.to or str(out / CHECKPOINTS))
        self._group = host_group()
        retention = Retention(save.last, save.keep_every, save.best)
        self._saver = Saver(self._store, self._group, device, plan, self._job, retention)
        self._last = time.monotonic()
        self._told: list[News] = []
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

    def resume(self, pieces: Callable[[], Sequence[Piece]]) -> Resumed | None:
        """Fill the pieces from the newest that all ranks can read and verify."""
        names = json.loads(first_text(self._group, json.dumps(self._names()) if self._world.rank == 0 else ""))
        failures: list[str] = []
        for name in reversed(names):
            trouble = damage = ""
            found = None
            try:
                found = self._read(name, pieces())
            except DamagedError as error:
                damage = str(error)
            except OSError as error:
                trouble = f"{error.filename or name}: {error.strerror or error}"
            trouble = first_text(self._group, trouble)
            if trouble:  # not to be passed over: what lies past the next save is removed
                raise OnecurveError(f"{self._store.where}: cannot be read now ({trouble}); start again when it can")
            damage = first_text(self._group, damage)
            if not damage and found is not None:
                self._saver.damaged = names[names.index(name) + 1 :]
                self._told += [News("warning", each) for each in failures]
                self.begun_step = self._saver.saved_step = found.standing.step
                return found
            failures.append(f"checkpoint passed over: {damage}")
        if names:
            raise OnecurveError(
                f"{self._store.where}: none of its {len(names)} checkpoints can be read ({failures[0]}); bring one "
                "back, or add --fresh to train anew"
            )
        return None

    def _read(self, name: str, pieces: Sequence[Piece]) -> Resumed:
        checkpoint = Checkpoint(self._store, name)
        refuse_changed(checkpoint.root.job, self._job, checkpoint.where)
        states = checkpoint.load(pieces, self._plan.mesh, self._world.rank)
        text = f"from step {checkpoint.root.standing.step}, {checkpoint.where}"
        return Resumed(checkpoint.root, states, text)

    def due(self, step: int) -> bool:
        """By the count of steps, so that all ranks know; see `overdue` for minutes."""
        return any(every is not None and step % every == 0 for every in (self._save.every, self._save.keep_every))

    def overdue(self) -> bool:
        """By the clock of the first rank, which tells the others with the next step."""
        waited = time.monotonic() - self._last
        return self._world.rank == 0 and self._save.every is None and waited > self._save.minutes * 60

    def save(self, pieces: Callable[[], Sequence[Piece]], kept: Kept, standing: Standing) -> None:
        """Once per step, and once more where that failed."""
        if standing.step == self.begun_step:
            self._saver.wait()
            if self._saver.saved_step == standing.step:
                return
        self._last, self.begun_step = time.monotonic(), standing.step
        self._saver.save(pieces(), kept, standing)

    def news(self) -> list[News]:
        told, self._told = [*self._told, *self._saver.news()], []
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
