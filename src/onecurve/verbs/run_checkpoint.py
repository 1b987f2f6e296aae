"""Which checkpoint of a run is meant, and the job that it belongs to."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.location import open_store
from onecurve.checkpoint.store import step_of
from onecurve.describe.errors import OnecurveError
from onecurve.job.job import Job
from onecurve.model.adapters import has_adapters
from onecurve.model.deferred import defer_init
from onecurve.runs.folder import CHECKPOINTS, RunOrigin, read_origin


def find_checkpoint(folder: Path, best: bool) -> Checkpoint:
    """Return the newest checkpoint of a run with a valid root manifest, or that of the best evaluation."""
    store = open_store(checkpoints_of(folder))
    failure = "there is none"
    for name in reversed(store.names()):
        try:
            checkpoint = Checkpoint(store, name)
            if not best or checkpoint.root.point.step == checkpoint.root.point.best_step:
                return checkpoint
            failure = "none is of the best evaluation"
        except (CorruptedError, OSError) as error:
            failure = str(error)
    raise OnecurveError(f"{store.where}: no checkpoint to read ({failure}); Job(save=…) says when a run saves one")


def checkpoint_at(folder: Path, at: int | str) -> Checkpoint:
    """Return the checkpoint of a run after step `at`, or the newest one if it is `"last"`."""
    if at == "last":
        return find_checkpoint(folder, best=False)
    store = open_store(checkpoints_of(folder))
    names = {str(step_of(name)): name for name in store.names()}
    if str(at) not in names:
        there = f"there are those of {', '.join(names)}" if names else "there is none"
        raise OnecurveError(f"{store.where}: no checkpoint of step {at} ({there}); give one of these steps, or last")
    return Checkpoint(store, names[str(at)])


def checkpoints_of(folder: Path) -> str:
    """Where the checkpoints of a run are."""
    if not folder.is_dir():
        raise OnecurveError(f"{folder}: no such folder; give the folder of a run, for example runs/gpt")
    origin = read_origin(folder)
    return origin.checkpoints if origin is not None and origin.checkpoints else str(folder / CHECKPOINTS)


def origin_of(folder: Path, arguments: Sequence[str] = ()) -> RunOrigin:
    """The job of a run. `arguments`: those that differ from the run's."""
    origin = read_origin(folder)
    if origin is None:
        raise OnecurveError(f"{folder}: no run's folder (it has no run.json); give one, for example runs/gpt")
    if not Path(origin.script).is_file():
        raise OnecurveError(f"{folder}: the run's script is not here ({origin.script}); put it back there")
    given = {argument.partition("=")[0]: argument for argument in arguments}
    kept = [argument for argument in origin.arguments if argument.partition("=")[0] not in given]
    return replace(origin, arguments=(*kept, *given.values()))


def with_saved_weights(job: Job) -> Job:
    """The job without initial weights, which a checkpoint replaces; with those of the base if the model has adapters,
    because a checkpoint has only these."""
    if job.weights is None or has_adapters(defer_init(job.model, job.seed).module):
        return job
    return replace(job, weights=None)
