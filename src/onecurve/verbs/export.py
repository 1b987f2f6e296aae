"""onecurve export: give me the weights. One process, whatever the run was; the newest checkpoint, tensor by tensor."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from onecurve.checkpoint.export import INDEX, LazyTensor, model_of, write_changed, write_many, write_one
from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.int8 import Int8
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.store import Store
from onecurve.describe.convert import nearest
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import default_plan
from onecurve.describe.summary import ExportSummary
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.model.deferred import defer_init
from onecurve.runs.folder import CHECKPOINTS, CONFIGURATION, Origin, origin_of
from onecurve.runtime.checkpoints import store_at
from onecurve.verbs.prepare import Run

Format = Literal["safetensors", "hf", "int8"]
_DEFAULT = {"safetensors": "model.safetensors", "hf": "hf", "int8": "model-int8.safetensors"}


def export(
    run: str | Path,
    to: Format = "safetensors",
    *,
    out: str | Path | None = None,
    best: bool = False,
    script: str | Path | None = None,
    quiet: bool = False,
) -> ExportSummary:
    """Write the model of a run's newest checkpoint: one safetensors file, a Hugging Face folder, or int8 weights.

    `best`: of the best evaluation instead. `out` is in the run's folder by default. int8 needs the model, so the
    `script`: a folder says which it was, but what a folder says is not run.
    """
    folder = Path(run)
    if to not in _DEFAULT:
        raise OnecurveError(f"export: to = {to!r} ({nearest(to, _DEFAULT)})")
    if not folder.is_dir():
        raise OnecurveError(f"{folder}: no such folder; give the folder of a run, for example runs/gpt")
    origin = origin_of(folder) or Origin("", ())
    if to == "int8" and script is None:
        was = f" (it was {origin.script})" if origin.script else ""
        raise OnecurveError(f"export: int8 needs the model: add --script with the script of the run{was}")
    checkpoint = _checkpoint(store_at(origin.checkpoints or str(folder / CHECKPOINTS)), best)
    path = Path(out) if out is not None else folder / _DEFAULT[to]
    tensors = _shown(model_of(checkpoint), quiet)
    losses: tuple[float, float] | tuple[()] = ()
    try:
        if to == "hf":
            _write_folder(tensors, folder / CONFIGURATION, path)
        elif to == "safetensors":
            path.parent.mkdir(parents=True, exist_ok=True)
            write_one(tensors, path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            assert script is not None
            losses = _write_int8(tensors, load_job(Path(script), origin.arguments), checkpoint, path)
    except OSError as error:
        raise OnecurveError(f"{path}: cannot be written ({error.strerror or error}); give another --out") from None
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    nbytes = sum(file.stat().st_size for file in files)
    return ExportSummary(checkpoint.where, checkpoint.root.standing.step, str(path), len(tensors), nbytes, *losses)


def _shown(tensors: dict[str, LazyTensor], quiet: bool) -> dict[str, LazyTensor]:
    """A bar that moves with every tensor that is read, in a terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return tensors
    progress = Progress(console=console, transient=True)
    task = progress.add_task("exporting", total=sum(each.nbytes for each in tensors.values()))

    def read(lazy: LazyTensor) -> Tensor:
        if not progress.live.is_started:  # not before it is known that there is something to do
            progress.start()
        tensor = lazy.read()
        progress.advance(task, lazy.nbytes)
        if progress.finished:
            progress.stop()
        return tensor

    return {name: replace(lazy, read=partial(read, lazy)) for name, lazy in tensors.items()}


def _checkpoint(store: Store, best: bool) -> Checkpoint:
    """The newest whose root is sound; what else is damaged is found when it is read."""
    failure = "it has none"
    for name in reversed(store.names()):
        try:
            found = Checkpoint(store, name)
            if not best:
                return found
            if found.root.standing.step == found.root.standing.best_step:
                return found
            failure = "none is of the best evaluation"
        except (CorruptedError, OSError) as error:
            failure = str(error)
    raise OnecurveError(f"{store.where}: no checkpoint to export from ({failure})")


def _write_folder(tensors: dict[str, LazyTensor], configuration: Path, path: Path) -> None:
    if not (configuration / "config.json").is_file():
        raise OnecurveError(
            f"{configuration}: no config.json, so the model was not one of transformers'; use --to safetensors"
        )
    path.mkdir(parents=True, exist_ok=True)
    for stale in (*path.glob("model*.safetensors"), path / INDEX):
        stale.unlink(missing_ok=True)
    for file in configuration.iterdir():
        if file.is_file() and not file.is_symlink():
            shutil.copyfile(file, path / file.name)
    write_many(tensors, path)


def _write_int8(
    tensors: dict[str, LazyTensor], job: Job, checkpoint: Checkpoint, path: Path
) -> tuple[float, float] | tuple[()]:
    """Returns the evaluation's loss before and after, where the job has data for it."""
    int8 = Int8(defer_init(job.model, job.seed).module)
    write_changed(tensors, int8.change, int8.facts(tensors), path)
    return _losses(job, checkpoint) if job.evaluate is not None else ()


def _losses(job: Job, checkpoint: Checkpoint) -> tuple[float, float]:
    with Run(replace(job, weights=None), default_plan(job.global_batch, 1)) as run:
        run.fill(checkpoint)
        before = run.evaluate().loss
        Int8(run.model).apply(run.model)
        return before, run.evaluate().loss
