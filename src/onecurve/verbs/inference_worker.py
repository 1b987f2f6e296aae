"""One rank of `onecurve evaluate` and `oc.predict`: it loads its part of a checkpoint, and computes outputs."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from onecurve.apply.pipeline import PipelinePart
from onecurve.apply.single_stage import SingleStagePart
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.location import open_store
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.data_marks import SAMPLES, sample_difference
from onecurve.describe.errors import OnecurveError
from onecurve.describe.evaluation import Evaluation
from onecurve.describe.generation import Generation
from onecurve.describe.plan import TablePlacement
from onecurve.describe.requests import InferenceRequest
from onecurve.describe.seed import mix
from onecurve.device.world import World
from onecurve.job.evaluate import Evaluate
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.launch.stop import Stop
from onecurve.runtime.build import RunBuilder
from onecurve.runtime.run import Run
from onecurve.runtime.run_settings import RunSettings
from onecurve.verbs.job_code import changed_code, code_hashes
from onecurve.verbs.run_checkpoint import with_saved_weights

Work = Callable[[World, Stop, Generation], str]


def evaluate_worker(request: str, _: Callable[[str], None]) -> Work:
    """Make the worker of a launched rank. Its result is the Evaluation as JSON, on rank 0."""
    asked = from_json(InferenceRequest, request.encode(), "request")

    def work(world: World, _: Stop, __: Generation) -> str:
        job = _job(asked, world)
        if job.evaluate is None:
            raise OnecurveError("evaluate: the job has no evaluation data; give Job(evaluate=onecurve.Evaluate(…))")
        with _loaded(asked, job, world) as (run, checkpoint):
            if world.rank == 0:
                _warn_of_other_data(run, checkpoint)
            step = checkpoint.root.point.step
            found = Evaluation(
                checkpoint=checkpoint.where,
                step=step,
                plan=str(run.plan),
                evaluation=replace(run.evaluate(), step=step),
                test=replace(tested, step=step) if (tested := run.test()) is not None else None,
            )
        return to_json(found) if world.rank == 0 else ""

    return work


def _warn_of_other_data(run: Run, checkpoint: Checkpoint) -> None:
    """Classes that are numbered otherwise than in training would make the evaluation wrong."""
    saved, now = (job.get(SAMPLES, "") for job in (checkpoint.root.job, run.components.fingerprint))
    if found := sample_difference(saved, now, ("in the checkpoint", "now")):
        print(f"warning: {found}", file=sys.stderr, flush=True)


def predict_worker(request: str, _: Callable[[str], None]) -> Work:
    """Make the worker of a launched rank. It writes its outputs, by the index of the sample, to a file per rank."""
    asked = from_json(InferenceRequest, request.encode(), "request")

    def work(world: World, _: Stop, __: Generation) -> str:
        dataset = torch.load(asked.data, weights_only=False)  # written by the process that has started this one
        job = replace(_job(asked, world), evaluate=Evaluate(lambda: dataset, every=1))
        with _loaded(asked, job, world) as loaded:
            outputs = dict(_outputs(loaded[0]))
        torch.save(outputs, f"{asked.data}.{world.rank}")
        return ""

    return work


def _job(asked: InferenceRequest, world: World) -> Job:
    """The job of the script. The first rank warns if its code is not the one that was trained."""
    job = load_job(Path(asked.script), asked.arguments)
    if world.rank == 0 and asked.code and (changed := changed_code(asked.code, code_hashes(job))):
        print(f"warning: {changed}; the results are those of the new one", file=sys.stderr, flush=True)
    return job


def _outputs(run: Run) -> Iterator[tuple[int, Any]]:
    """The model's output for each sample of this rank."""
    evaluation = run.components.loaders.evaluation
    assert evaluation is not None
    part = run.components.part
    assert isinstance(part, SingleStagePart | PipelinePart)
    for (begin, end), micro in evaluation.numbered():
        run.device.seed(mix(run.job.seed, begin, 4))
        output = part.infer(part.place(micro))
        if begin < end and part.reports_metrics:
            for number in range(end - begin):
                yield begin + number, pytree.tree_map_only(Tensor, _row_of(number, end - begin), output)


def _row_of(number: int, samples: int) -> Callable[[Tensor], Tensor]:
    def row(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or len(tensor) != samples:
            raise OnecurveError(
                f"predict: the model returned a tensor of shape {list(tensor.shape)} for {samples} samples; the first "
                "dimension must be that of the samples"
            )
        return tensor[number].cpu().clone()

    return row


@contextmanager
def _loaded(asked: InferenceRequest, job: Job, world: World) -> Iterator[tuple[Run, Checkpoint]]:
    """The run with the weights of the checkpoint."""
    job = replace(with_saved_weights(job), params=None, save=None, cache=None)
    checkpoint = Checkpoint(open_store(asked.checkpoints), asked.checkpoint)
    # The checkpoint has the rows of servers too, and the ranks can hold them for a while.
    tables: dict[str, TablePlacement] = {
        name: "row_sharded" if place == "served" else place for name, place in asked.plan.tables.items()
    }
    with RunBuilder(job, RunSettings()).build(replace(asked.plan, tables=tables), world) as run:
        run.load_model(checkpoint)
        yield run, checkpoint
