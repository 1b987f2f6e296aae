"""onecurve export: write the weights of a run for other programs. One process, tensor by tensor, from a checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from onecurve.checkpoint.export import LazyTensor, lazy_tensors_of, write_one, write_transformed
from onecurve.checkpoint.hugging_face import write_folder
from onecurve.checkpoint.int8 import Int8
from onecurve.checkpoint.loader import Checkpoint
from onecurve.describe.convert import nearest
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import default_plan
from onecurve.describe.summary import ExportSummary
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.model.deferred import defer_init
from onecurve.runs.folder import HUGGING_FACE, RunOrigin, read_origin
from onecurve.runtime.build import build_run
from onecurve.runtime.run_settings import RunSettings
from onecurve.verbs.run_checkpoint import find_checkpoint, with_saved_weights

Format = Literal["safetensors", "hf", "int8"]
_DEFAULT_NAMES = {"safetensors": "model.safetensors", "hf": "hf", "int8": "model-int8.safetensors"}


def export(
    run: str | Path,
    to: Format = "safetensors",
    *,
    out: str | Path | None = None,
    best: bool = False,
    script: str | Path | None = None,
    quiet: bool = False,
) -> ExportSummary:
    """Write the weights of a run's newest checkpoint for other programs, as `onecurve export` does.

    Args:
        run: The run's folder, for example `"runs/gpt"`.
        to: `"safetensors"` writes one file, `"hf"` a Hugging Face folder, `"int8"` a file of quantized weights.
            Default: `"safetensors"`.
        out: File or folder to write. Default: None, a name in the run's folder.
        best: Use the checkpoint of the best evaluation instead of the newest. Default: False.
        script: The run's script, which int8 needs; a script that a folder merely names is not executed. Default: None.
        quiet: Show no progress bar. Default: False.

    Returns:
        What was written: the path, the number of tensors and bytes, and the step of the checkpoint.

    Example::

        summary = oc.export("runs/first", out="model.safetensors")
        print(summary.path, summary.bytes, "bytes, from step", summary.step)
    """
    folder = Path(run)
    if to not in _DEFAULT_NAMES:
        raise OnecurveError(f"export: to = {to!r} ({nearest(to, _DEFAULT_NAMES)})")
    if not folder.is_dir():
        raise OnecurveError(f"{folder}: no such folder; give the folder of a run, for example runs/gpt")
    origin = read_origin(folder) or RunOrigin(script="", arguments=())
    if to == "int8" and script is None:
        original = f" (it was {origin.script})" if origin.script else ""
        raise OnecurveError(f"export: int8 needs the model: add --script with the script of the run{original}")
    checkpoint = find_checkpoint(folder, best)
    path = Path(out) if out is not None else folder / _DEFAULT_NAMES[to]
    tensors = _with_progress(lazy_tensors_of(checkpoint), quiet)
    loss = exported_loss = None
    try:
        if to == "hf":
            write_folder(tensors, folder / HUGGING_FACE, path)
        elif to == "safetensors":
            path.parent.mkdir(parents=True, exist_ok=True)
            write_one(tensors, path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            assert script is not None
            job = load_job(Path(script), origin.arguments)
            _write_int8(tensors, job, path)
            if job.evaluate is not None:
                loss, exported_loss = _losses(job, checkpoint)
    except OSError as error:
        raise OnecurveError(f"{path}: cannot be written ({error.strerror or error}); give another --out") from None
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return ExportSummary(
        source=checkpoint.where,
        step=checkpoint.root.point.step,
        path=str(path),
        tensors=len(tensors),
        bytes=sum(file.stat().st_size for file in files),
        loss=loss,
        exported_loss=exported_loss,
    )


def _with_progress(tensors: Mapping[str, LazyTensor], quiet: bool) -> Mapping[str, LazyTensor]:
    """On a terminal, show a progress bar that advances with every tensor that is read."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        return tensors
    progress = Progress(console=console, transient=True)
    task = progress.add_task("exporting", total=sum(lazy.nbytes for lazy in tensors.values()))

    def read(lazy: LazyTensor) -> Tensor:
        if not progress.live.is_started:  # an export that is refused shows no bar
            progress.start()
        tensor = lazy.read()
        progress.advance(task, lazy.nbytes)
        if progress.finished:
            progress.stop()
        return tensor

    return {name: replace(lazy, read=partial(read, lazy)) for name, lazy in tensors.items()}


def _write_int8(tensors: Mapping[str, LazyTensor], job: Job, path: Path) -> None:
    int8 = Int8(defer_init(job.model, job.seed).module)
    write_transformed(tensors, int8.quantize_tensor, int8.metadata(tensors), path)


def _losses(job: Job, checkpoint: Checkpoint) -> tuple[float, float]:
    """Return the evaluation loss with the original and with the quantized weights."""
    job = replace(with_saved_weights(job), params=None)
    with build_run(job, default_plan(job.global_batch, 1), RunSettings()) as run:
        run.load_model(checkpoint)
        loss = run.evaluate().loss
        Int8(run.model).quantize_model(run.model)
        return loss, run.evaluate().loss
