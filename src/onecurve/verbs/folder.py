"""The folder of a run: what is in it, and that nothing of worth is written over."""

import shutil
from pathlib import Path

from onecurve.describe.errors import OnecurveError

SUMMARY = "summary.json"
WEIGHTS = "weights.safetensors"
PLAN = "plan.toml"
RECORDS = "records"
TENSORBOARD = "tensorboard"
CHECKPOINTS = "checkpoints"


def refuse_used(folder: Path, fresh: bool) -> None:
    """What is not a run is never written over; a run goes on, unless it ended and left nothing to go on from."""
    if folder.exists() and not folder.is_dir():
        raise OnecurveError(f"{folder}: is a file; give another --out")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / RECORDS / "rank-0.jsonl").is_file():
            raise OnecurveError(f"{folder}: is not empty and not a run's folder; give another --out")
        if not fresh and (folder / WEIGHTS).exists() and not (folder / CHECKPOINTS).is_dir():
            raise OnecurveError(f"{folder}: holds a run already; add --fresh to replace it, or give another --out")


def make_room(folder: Path, fresh: bool) -> None:
    """Where a run does not go on, remove what one before has written, and nothing else."""
    refuse_used(folder, fresh)
    try:
        if fresh or not (folder / CHECKPOINTS).is_dir():
            _clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OnecurveError(f"{folder}: cannot be written ({error.strerror}); give another --out") from None


def _clear(folder: Path) -> None:
    for name in (RECORDS, TENSORBOARD, CHECKPOINTS):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (WEIGHTS, SUMMARY, PLAN):
        (folder / name).unlink(missing_ok=True)
