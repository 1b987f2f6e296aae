"""The folder of a run: what is in it, and that nothing of worth is written over."""

import contextlib
import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.store import empty
from onecurve.describe.convert import from_json
from onecurve.describe.errors import OnecurveError

SUMMARY = "summary.json"
WEIGHTS = "weights.safetensors"
PLAN = "plan.toml"
RECORDS = "records"
TENSORBOARD = "tensorboard"
CHECKPOINTS = "checkpoints"
ORIGIN = "run.json"
LOCK = ".lock"
CONFIGURATION = "huggingface"


@dataclass(frozen=True)
class Origin:
    """What the run in a folder is of."""

    script: str
    arguments: tuple[str, ...]
    checkpoints: str = ""
    """Where they are, if not in the folder."""


class RunLock:
    """On folders: two runs in one would remove each other's files. Held until released or the process ends."""

    def __init__(self, *folders: Path) -> None:
        self._handles: list[int] = []
        try:
            for folder in folders:
                self._handles.append(_lock(folder))
        except OnecurveError:
            self.release()
            raise

    def release(self) -> None:
        """Said, not left to closing: loader processes have inherited the handles."""
        for handle in self._handles:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)
        self._handles = []


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise OnecurveError(f"{folder}: cannot be written ({error.strerror}); give another --out") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OnecurveError(f"{folder}: another run is at work in it; wait for it, or give another --out") from None
    except OSError:
        pass  # a file system without locks
    return handle


def refuse_foreign_folder(folder: Path) -> None:
    """What is not a run's is never written into."""
    if folder.exists() and not folder.is_dir():
        raise OnecurveError(f"{folder}: is a file; give another --out")
    empty = not folder.is_dir() or all(entry.name == LOCK for entry in folder.iterdir())
    marks = ((folder / RECORDS).glob("rank-*.jsonl"), folder.glob(ORIGIN), (folder / CHECKPOINTS).glob("step-*"))
    if not empty and not any(any(each) for each in marks):
        raise OnecurveError(f"{folder}: is not empty and not a run's folder; give another --out")


def clear_previous_run(folder: Path, fresh: bool) -> None:
    """For a run that does not go on from a checkpoint: remove what one before has written, and nothing else."""
    if not fresh and (folder / WEIGHTS).exists():
        raise OnecurveError(f"{folder}: holds a run already; add --fresh to replace it, or give another --out")
    try:
        if fresh:  # also where this job saves none of its own: they would be another's to go on from
            empty(LocalStore(folder / CHECKPOINTS))
        for name in (RECORDS, TENSORBOARD, CONFIGURATION):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in (WEIGHTS, SUMMARY, PLAN, ORIGIN):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise OnecurveError(f"{folder}: cannot be written ({error.strerror}); give another --out") from None


def origin_of(folder: Path) -> Origin | None:
    """None where the folder's run did not come to say."""
    file = folder / ORIGIN
    return from_json(Origin, file.read_bytes(), str(file)) if file.is_file() else None
