"""The layout of a run's folder, and what may be removed from it."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.store import empty
from onecurve.describe.change import JobChange
from onecurve.describe.convert import from_document, from_json, null_to_nan, read_json
from onecurve.describe.diagnosis import TriedChange, TriedChanges
from onecurve.describe.errors import OnecurveError
from onecurve.describe.summary import RunSummary
from onecurve.runs.lock import LOCK

SUMMARY = "summary.json"
WEIGHTS = "weights.safetensors"
BEST_WEIGHTS = "best.safetensors"
PLAN = "plan.toml"
RECORDS = "records"
TRACES = "traces"
TENSORBOARD = "tensorboard"
TRACKED_RUNS = ("mlflow-run", "wandb-run")
"""Which runs of trackers continue if this run is continued."""
CHECKPOINTS = "checkpoints"
ORIGIN = "run.json"
TRIALS = "tried.json"
"""What `onecurve why --try` has tried."""
HUGGING_FACE = "huggingface"
LANES = "lanes"
SCRATCH = ".try-"
"""Begins the names of the folders of trials, which are removed when these end."""
MEETING = ".meeting"
"""Where the hosts of a run find each other; it exists while they run."""
SLURM_SCRIPT, SLURM_LOG, SLURM_STARTED = "slurm.sh", "slurm.log", ".slurm-started"
"""The batch job of a run, its log, and a file whose time is that of its last start."""
_OF_SLURM = (SLURM_SCRIPT, SLURM_LOG, SLURM_STARTED)


@dataclass(frozen=True, kw_only=True)
class RunOrigin:
    """Which job a run trains; the content of run.json."""

    file_version: ClassVar[int] = 1

    script: str
    arguments: tuple[str, ...]
    checkpoints: str = ""
    """Location of the checkpoints; empty if they are in the run's folder."""
    changes: tuple[JobChange, ...] = ()
    """Fields of the job that were changed since the run was started, oldest first."""
    proof: str = ""
    """Identifies the job, its code and the plan that were proved before training; empty if they were not."""
    code: Mapping[str, str] = field(default_factory=dict)
    """A hash of the code of some of the job's fields."""


def refuse_foreign_folder(folder: Path) -> None:
    """Refuse to write into a folder that holds something other than a run."""
    if folder.exists() and not folder.is_dir():
        raise OnecurveError(f"{folder}: is a file; give another --out")
    is_empty = not folder.is_dir() or all(map(_is_of_a_start, folder.iterdir()))
    marks = ((folder / RECORDS).glob("rank-*.jsonl"), folder.glob(ORIGIN), (folder / CHECKPOINTS).glob("step-*"))
    if not is_empty and not any(any(files) for files in marks):
        raise OnecurveError(f"{folder}: is not empty and not a run's folder; give another --out")


def _is_of_a_start(entry: Path) -> bool:
    """True for what a run leaves that ends before its first record."""
    if entry.name == CHECKPOINTS:
        return entry.is_dir() and all(inside.name.startswith(".") for inside in entry.iterdir())
    return entry.name in (LOCK, *_OF_SLURM) or entry.name.startswith(MEETING)


def clear_previous_run(folder: Path, fresh: bool) -> None:
    """Remove the files of a previous run, and nothing else, before a run that does not continue from a checkpoint."""
    if not fresh and (folder / WEIGHTS).exists():
        raise OnecurveError(f"{folder}: already holds a run; add --fresh to replace it, or give another --out")
    try:
        if fresh:  # even if the new job saves elsewhere: a later run must not continue from another job's checkpoints
            empty(LocalStore(folder / CHECKPOINTS))
        for name in (RECORDS, TRACES, TENSORBOARD, HUGGING_FACE, LANES):
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in (WEIGHTS, BEST_WEIGHTS, SUMMARY, PLAN, ORIGIN, TRIALS, *TRACKED_RUNS):
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise OnecurveError(f"{folder}: cannot be written ({error.strerror}); give another --out") from None


def records_file(folder: Path, rank: int) -> Path:
    return folder / RECORDS / f"rank-{rank}.jsonl"


def traces_file(folder: Path, rank: int) -> Path:
    return folder / TRACES / f"rank-{rank}.jsonl"


def read_origin(folder: Path) -> RunOrigin | None:
    """Return which job the run in this folder trains, or None if the run did not get far enough to write it."""
    file = folder / ORIGIN
    return read_json(RunOrigin, file) if file.is_file() else None


def read_trials(folder: Path, plan: str) -> tuple[TriedChange, ...]:
    """Return the changes that were tried on a run while it had this plan."""
    file = folder / TRIALS
    trials = read_json(TriedChanges, file) if file.is_file() else None
    return trials.changes if trials is not None and trials.plan == plan else ()


def read_summary(folder: Path) -> RunSummary | None:
    """Return the summary of a finished run, or None if it is missing or unreadable."""
    try:
        plain = from_json(dict[str, Any], (folder / SUMMARY).read_bytes(), SUMMARY)
        if plain.get("version") == 1:
            plain = _from_version_1(plain)
        return from_document(RunSummary, null_to_nan(RunSummary, plain), SUMMARY)
    except (OSError, OnecurveError, LookupError, TypeError):
        return None


def _from_version_1(plain: dict[str, Any]) -> dict[str, Any]:
    """Version 1 counted steps from 0 and did not say how a run ended, so only one that did all its steps is read."""
    if plain["steps"] != plain["steps_planned"]:
        raise OnecurveError(f"{SUMMARY}: written by an older onecurve")
    evaluations = {
        name: plain[name] and {**plain[name], "step": plain[name]["step"] + 1} for name in ("evaluation", "best")
    }
    return {**plain, **evaluations, "version": RunSummary.file_version, "ended": "finished", "best_weights": None}
