"""A run's checkpoints: which one to resume from, when the next is due, and saving it."""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.location import local_folder, open_store
from onecurve.checkpoint.manifest import SavePoint
from onecurve.checkpoint.memory_store import MemoryStore, RankSnapshot
from onecurve.checkpoint.read_plan import States
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.saver import SaveEvent, Saver, new_generation
from onecurve.checkpoint.snapshot import OptimizerState
from onecurve.checkpoint.snapshot_slots import SnapshotKeeper
from onecurve.checkpoint.store import ReadableStore, empty, step_of
from onecurve.describe.change import JobChange
from onecurve.describe.convert import from_plain, to_plain
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan, Precision
from onecurve.device.collectives import broadcast_first_text, new_host_group
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor
from onecurve.device.world import World
from onecurve.job.cadence import TrainingPoint, is_reached
from onecurve.job.save import Save
from onecurve.runs.folder import CHECKPOINTS
from onecurve.runs.lock import RunLock
from onecurve.runtime.changed_job import changed_fields
from onecurve.runtime.saved_rows import RowsToSave, SavedRows
from onecurve.runtime.snapshot_schedule import SnapshotSchedule
from onecurve.train.state import TrainState

ListTensors = Callable[[], Sequence[LocalTensor]]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class KeptMemory:
    """The memory that this rank's keeper keeps, and the failures of the run so far."""

    keeper: SnapshotKeeper
    snapshot_of: Callable[[int], RankSnapshot] | None = None
    """Rank of an earlier generation → what it has copied at the step from which this generation continues; None if
    there is no snapshot."""
    failures: int = 0
    run_seconds: float = 0.0
    """How long the run's earlier generations took."""


@dataclass(frozen=True)
class Resumed:
    """What a run continues from."""

    checkpoint: Checkpoint
    state: TrainState
    optimizer_states: States
    precision: Precision
    """Precision of the plan that saved it."""
    text: str
    """For a person."""
    changes: tuple[JobChange, ...] = ()
    """Fields of the job that have changed since the checkpoint was saved."""


def lock_run(out: Path, save: Save | None, patience: float = 0.0) -> RunLock:
    """Lock the folders of this host that a run writes into. `patience`: seconds to wait for another process."""
    folder = local_folder(save.to) if save is not None and save.to is not None else None
    return RunLock(out, *([folder] if folder is not None else []), patience=patience)


def refuse_changed_job(save: Save, out: Path, fingerprint: Mapping[str, str]) -> None:
    """Raise OnecurveError, naming all fields that differ, if another job saved the newest checkpoint."""
    store = open_store(save.to or str(out / CHECKPOINTS))
    with suppress(CorruptedError, OSError):
        for name in store.names()[-1:]:
            checkpoint = Checkpoint(store, name)
            changed_fields(checkpoint.root.job, fingerprint, checkpoint.where)


class Checkpoints:
    """Every rank has one, and all ranks call its methods together."""

    def __init__(
        self,
        save: Save,
        out: Path,
        world: World,
        device: Device,
        plan: Plan,
        fingerprint: Mapping[str, str],
        change: Collection[str] = (),
        kept: KeptMemory | None = None,
    ) -> None:
        """`change`: fields of the job that must differ from those of the checkpoint; all others must not. `kept`: the
        memory that this rank's keeper keeps; None if it has none."""
        self._save, self._world, self._plan = save, world, plan
        self._fingerprint, self._change = dict(fingerprint), change
        self._store = open_store(save.to or str(out / CHECKPOINTS))
        self._group = new_host_group()
        generation = new_generation(self._group)
        self._store.enter(generation)
        self._fence()
        retention = Retention(save.last, save.keep_every, save.best)
        self._kept = kept if save.memory is not None else None
        self._schedule = (
            SnapshotSchedule(save.memory, self._kept.failures, self._kept.run_seconds)
            if self._kept is not None and save.memory is not None
            else None
        )
        keeper = self._kept.keeper if self._kept is not None else None
        self._cpu_seconds = 0.0
        self._saver = Saver(self._store, self._group, device, plan, self._fingerprint, retention, generation, keeper)
        self._last_save = time.monotonic()
        self._events: list[SaveEvent] = []
        self._asked = TrainingPoint(0, 0)
        self._snapshots_failed = False
        self.begun_step = -1
        """Steps done at the newest save, which may still be running."""

    def _fence(self) -> None:
        """Keep ranks of earlier generations, which may be late, from changing the store."""
        failure = ""
        if self._world.rank == 0:
            try:
                self._store.fence()
            except (OSError, OnecurveError) as error:  # the other ranks wait to be told
                failure = getattr(error, "strerror", None) or str(error)
        failure = broadcast_first_text(self._group, failure)
        if failure:
            raise OnecurveError(f"{self._store.where}: cannot be written ({failure}); give another location")

    def remove_all(self) -> None:
        """Remove all checkpoints of an earlier run."""
        if self._world.rank == 0:
            try:
                empty(self._store)
            except OSError as error:
                raise OnecurveError(
                    f"{self._store.where}: cannot be emptied ({error.strerror or error}); give another location"
                ) from None

    def exist(self) -> bool:
        """True if there is a checkpoint or a snapshot to resume from."""
        return (self._kept is not None and self._kept.snapshot_of is not None) or bool(self._names_on_all_ranks())

    def resume(
        self, local_tensors: ListTensors, rows: SavedRows, on_progress: Callable[[int, int], None] = lambda _, __: None
    ) -> Resumed | None:
        """Fill the tensors, and the embedding tables, from the newest snapshot or checkpoint that all ranks can read
        and verify; None if there is none. `on_progress`: told the bytes that were read, and those to be read in all."""
        names = self._names_on_all_ranks()
        sources: list[tuple[ReadableStore, str]] = [(self._store, name) for name in names]
        if (snapshot := self._snapshot()) is not None:
            sources = sorted([*sources, snapshot], key=lambda source: step_of(source[1]))
        skipped: list[str] = []
        for store, name in reversed(sources):
            resumed, damage = self._agreed(store, name, partial(self._read, store, name, local_tensors(), on_progress))
            if resumed is not None and not damage:
                point = resumed.state.rows if store is not self._store else None
                load_rows = partial(
                    rows.load, resumed.checkpoint, name in names, resumed.state.step, resumed.state.updates, point
                )
                _, damage = self._agreed(store, name, load_rows)
            if not damage and resumed is not None:
                self._events += [SaveEvent("warning", text) for text in skipped]
                self._continue_after(names, resumed.state.step)
                return resumed
            skipped.append(f"checkpoint skipped: {damage}")
        if names:
            raise OnecurveError(
                f"{self._store.where}: none of its {len(names)} checkpoints can be read ({skipped[0]}); restore one, "
                "or add --fresh to start over"
            )
        if self._change:
            raise OnecurveError(
                f"{self._store.where}: --change {','.join(self._change)}, but there is no checkpoint to continue from; "
                "leave --change out to start a new run"
            )
        return None

    def _agreed(self, store: ReadableStore, name: str, read: Callable[[], T]) -> tuple[T | None, str]:
        """Read something on all ranks; return it, and what is damaged of it on some rank."""
        result, unreadable, damage = None, "", ""
        try:
            result = read()
        except CorruptedError as error:
            damage = str(error)
        except OSError as error:
            unreadable = f"{error.filename or name}: {error.strerror or error}"
        unreadable = broadcast_first_text(self._group, unreadable)
        if unreadable:  # it may be readable later, but a save from an earlier one would remove it
            raise OnecurveError(f"{store.where}: cannot be read at the moment ({unreadable}); start again when it can")
        return result, broadcast_first_text(self._group, damage)

    def _snapshot(self) -> tuple[ReadableStore, str] | None:
        """The snapshot in memory that can be loaded, and its name; None if there is none."""
        if self._kept is None or self._kept.snapshot_of is None:
            return None
        store = MemoryStore(self._kept.snapshot_of)
        return store, broadcast_first_text(self._group, store.name() if self._world.rank == 0 else "")

    def _continue_after(self, names: Sequence[str], step: int) -> None:
        """Let saves continue after this step. Checkpoints of later steps could not be read, and are removed later."""
        readable = [name for name in names if step_of(name) <= step]
        saved = step_of(readable[-1]) if readable else -1
        self.begun_step = saved
        self._saver.resume_after(saved, names[len(readable) :])

    def _read(
        self,
        store: ReadableStore,
        name: str,
        local_tensors: Sequence[LocalTensor],
        on_progress: Callable[[int, int], None],
    ) -> Resumed:
        checkpoint = Checkpoint(store, name, self._store)
        state = train_state_of(checkpoint)
        changes = self._changes(checkpoint, state)
        optimizer_states = checkpoint.load(local_tensors, self._plan.mesh, self._world.rank, on_progress)
        return Resumed(
            checkpoint=checkpoint,
            state=replace(state, changes=(*state.changes, *changes)),
            optimizer_states=optimizer_states,
            precision=checkpoint.root.plan.precision,
            text=f"from step {state.step}, {checkpoint.where}",
            changes=tuple(changes),
        )

    def _changes(self, checkpoint: Checkpoint, state: TrainState) -> list[JobChange]:
        saved, now = checkpoint.root.job, self._fingerprint
        earlier = {change.field for change in state.changes}
        return [
            JobChange(name, saved.get(name, "not known"), _new_value(name, saved, now), state.step)
            for name in changed_fields(saved, now, checkpoint.where, self._change, earlier)
        ]

    def begin(self, point: TrainingPoint) -> None:
        """The training goes on from here."""
        self._asked = point

    def due(self, point: TrainingPoint) -> bool:
        """True if a save became due by the number of steps since the last call. See `overdue` for minutes.

        Steps may be left out between two calls, as in loops that update every few batches.
        """
        before, self._asked = self._asked, point
        return any(is_reached(every, before, point) for every in (self._save.every, self._save.keep_every))

    def overdue(self) -> bool:
        """True if a save is due by the clock of the first rank, which tells the others with the next step."""
        waited = time.monotonic() - self._last_save
        return self._world.rank == 0 and self._save.every is None and waited > self._save.minutes * 60

    @property
    def takes_snapshots(self) -> bool:
        """True if snapshots are taken in memory that outlives this rank."""
        return self._schedule is not None

    def snapshot_due(self, asked: bool) -> bool:
        """True if a snapshot in memory is due after this step, or asked for, as the first rank finds."""
        if self._schedule is None:
            return False
        is_due = self._schedule.due(self._saver.is_on_its_way)
        return (is_due or asked) and self._world.rank == 0

    def snapshot_blocked(self) -> bool:
        """True if this rank cannot take the next snapshot: its memory is still in use, or an earlier one has failed."""
        return self._snapshots_failed or self._saver.is_blocked

    def snapshot(
        self, local_tensors: ListTensors, optimizer_state: OptimizerState, state: TrainState, rows: SavedRows
    ) -> None:
        """Copy to memory that outlives this rank. A failure is a warning, and the last attempt of all ranks."""
        try:
            taken = rows.for_snapshot(state.step)
            self._saver.snapshot([*local_tensors(), *taken.tensors], optimizer_state, _save_point(state, taken))
        except (OSError, OnecurveError) as error:
            self._snapshots_failed = True
            self._events.append(
                SaveEvent("warning", f"no further snapshots are taken in memory ({error}); checkpoints are still saved")
            )

    def snapshot_taken(self, seconds: float) -> None:
        """A snapshot was taken. `seconds`: how long the training waited for it, with all that it needs."""
        if self._schedule is not None:
            self._schedule.taken(seconds, self._saver.is_on_its_way)
            if news := self._schedule.news():
                self._events.append(SaveEvent("snapshots", news))

    @property
    def saved_step(self) -> int:
        """Steps done at the newest checkpoint, once no save is running; -1 if there is none."""
        return self._saver.saved_step

    def save(
        self, local_tensors: ListTensors, optimizer_state: OptimizerState, state: TrainState, rows: SavedRows
    ) -> None:
        """Save in the background. A step is saved once, and once more if that failed."""
        self._saver.wait()
        if state.step == self.begun_step == self._saver.saved_step:
            return
        self._last_save, self.begun_step = time.monotonic(), state.step
        taken = rows.for_checkpoint(state.step, self._saver.saved_name, self._group)
        tensors = [*local_tensors(), *taken.tensors]
        self._saver.save(tensors, optimizer_state, _save_point(state, taken), taken.needed)

    def take_cpu_seconds(self) -> float:
        """CPU time of writing checkpoints in the background since the last call."""
        before, self._cpu_seconds = self._cpu_seconds, self._saver.cpu_seconds
        return self._cpu_seconds - before

    def take_events(self) -> list[SaveEvent]:
        """Return how saves ended since the last call."""
        events, self._events = [*self._events, *self._saver.take_events()], []
        return events

    def wait(self) -> None:
        self._saver.wait()

    def close(self) -> None:
        self._saver.close()

    def of_step(self, step: int) -> Checkpoint | None:
        """Return the checkpoint that was saved after `step` steps; None if it does not exist or cannot be read."""
        self._saver.wait()
        try:
            names = [name for name in self._store.names() if step_of(name) == step]
            return Checkpoint(self._store, names[-1]) if names else None
        except (CorruptedError, OSError):
            return None

    def _names_on_all_ranks(self) -> list[str]:
        names = broadcast_first_text(self._group, json.dumps(self._names()) if self._world.rank == 0 else "")
        return list(json.loads(names))

    def _names(self) -> list[str]:
        try:
            self._store.clear()
            return self._store.names()
        except OSError as error:
            raise OnecurveError(f"{self._store.where}: cannot be read ({error.strerror or error})") from None


def _new_value(name: str, saved: Mapping[str, str], now: Mapping[str, str]) -> str:
    return f"other {now[name]}" if saved.get(name) == now[name] else now[name]  # of data, its length may have stayed


def _save_point(state: TrainState, rows: RowsToSave) -> SavePoint:
    best_step = state.best.step if state.best is not None and state.best.value is not None else None
    return SavePoint(state.step, to_plain(state), best_step, rows.base)


def train_state_of(checkpoint: Checkpoint) -> TrainState:
    state = from_plain(TrainState, checkpoint.root.point.train_state, checkpoint.where)
    if checkpoint.root.version == 2 and state.best is not None:  # it counted this step from 0
        return replace(state, best=replace(state.best, step=state.best.step + 1))
    return state
