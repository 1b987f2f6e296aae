"""The folder of a run: what is in it, and that nothing of worth is written over."""

import fcntl
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

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
    checkpoints: str
    """Where they are."""


class Claim:
    """On a folder: two runs in one would remove each other's files. Held until released or the process ends."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise OnecurveError(f"{folder}: cannot be written ({error.strerror}); give another --out") from None
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._handle)
            raise OnecurveError(f"{folder}: another run is at work in it; wait for it, or give another --out") from None

    def release(self) -> None:
        os.close(self._handle)


def refuse_used(folder: Path, fresh: bool) -> None:
    """What is not a run is never written over; a run goes on, unless it ended and left nothing to go on from."""
    if folder.exists() and not folder.is_dir():
        raise OnecurveError(f"{folder}: is a file; give another --out")
    if folder.is_dir() and any(entry.name != LOCK for entry in folder.iterdir()):
        if not (folder / RECORDS / "rank-0.jsonl").is_file():
            raise OnecurveError(f"{folder}: is not empty and not a run's folder; give another --out")
        if not fresh and (folder / WEIGHTS).exists() and not goes_on(folder):
            raise OnecurveError(f"{folder}: holds a run already; add --fresh to replace it, or give another --out")


def origin_of(folder: Path) -> Origin | None:
    """None where the folder's run did not come to say."""
    file = folder / ORIGIN
    return from_json(Origin, file.read_bytes(), str(file)) if file.is_file() else None


def goes_on(folder: Path) -> bool:
    """Whether the run in a folder may have left checkpoints, there or elsewhere."""
    origin = origin_of(folder)
    return (folder / CHECKPOINTS).is_dir() or (origin is not None and bool(origin.checkpoints))


def make_room(folder: Path, fresh: bool) -> None:
    """Where a run does not go on, remove what one before has written, and nothing else."""
    refuse_used(folder, fresh)
    try:
        if fresh or not goes_on(folder):
            _clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OnecurveError(f"{folder}: cannot be written ({error.strerror}); give another --out") from None


def _clear(folder: Path) -> None:
    for name in (RECORDS, TENSORBOARD, CHECKPOINTS, CONFIGURATION):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (WEIGHTS, SUMMARY, PLAN, ORIGIN):
        (folder / name).unlink(missing_ok=True)
