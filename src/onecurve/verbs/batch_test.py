"""onecurve tune --batch: which global batch suits a job? One run, whose gradients are measured, shows it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from onecurve.data.training_data import TrainingData, open_data
from onecurve.describe.errors import OnecurveError
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.describe.record import StepRecord
from onecurve.describe.requests import RunRequest
from onecurve.describe.tuning import BatchChoice, BatchTest
from onecurve.diagnose.history_reader import read_history
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.job.script_path import Script, script_path
from onecurve.params.row_timing import time_rows
from onecurve.planner.clusters import HERE, find_cluster
from onecurve.planner.planner import Planner
from onecurve.runs.records import read_records
from onecurve.runtime.manual import refuse_manual_backward
from onecurve.study.batch_size import steps_factor, suggested_batch, suggested_lr
from onecurve.verbs.probe import probe_this_host
from onecurve.verbs.run import launch_run


def batch_test(
    script: Script,
    arguments: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> BatchTest:
    """Train once and suggest a global batch from the noise of the gradients, as `onecurve tune --batch` does.

    Args:
        script: The Python file that defines `job()`, or that function itself.
        arguments: Arguments of `job()`, as texts `"name=value"`. Default: none.
        out: Folder of the run. Default: None, `runs/batch-` and the script's name. An earlier test in it is replaced.
        say: A function that is called with short texts about what is being done. Default: they are dropped.

    Returns:
        The gradient noise scale; and the batch, learning rate, steps, samples and hours, as they are and as suggested.

    Example::

        test = oc.batch_test("train.py", ["steps=500"])
        print(test.suggested.global_batch, test.suggested.lr)
    """
    path = script_path(script, "batch_test")
    folder = Path(out) if out is not None else Path("runs") / f"batch-{path.stem}"
    say("reading the job")
    job = load_job(path, arguments)
    refuse_manual_backward(job, f"{path}: its batch cannot be tested")
    data = open_data(job)
    now = _predicted(job, data, say)
    plan = _in_parts(now.plan)
    request = RunRequest(
        script=str(path), arguments=tuple(arguments), out=str(folder), fresh=True, quiet=True, check=False
    )
    say(f"{data.steps:,} steps with a global batch of {job.global_batch:,}")
    launch_run(request, plan, say)
    noise = read_history(folder).noise.scale
    if noise is None:
        raise OnecurveError(
            f"batch test: {data.steps:,} steps do not show the noise of the gradients; give more steps, at least 40 "
            "(it is not measured with embedding tables, a loss over the whole batch, or uneven shares)"
            if plan.mesh.tensor == plan.mesh.pipeline == 1
            else f"batch test: the noise of the gradients is not measured under the plan {plan}, the best on this "
            "host; test with a smaller model"
        )
    batch = suggested_batch(job.global_batch, noise)
    then = _predicted(replace(job, global_batch=batch), data, say) if batch != job.global_batch else now
    steps = max(1, round(data.steps * steps_factor(job.global_batch, batch, noise)))
    rule = "linear" if getattr(job.optimizers[""], "kind", None) is torch.optim.SGD else "square root"
    lr = _base_lr(folder, job, data.steps)
    return BatchTest(
        out=str(folder),
        noise_scale=noise,
        rule=rule,
        now=_choice(job.global_batch, lr, data.steps, now),
        suggested=_choice(batch, suggested_lr(lr, job.global_batch, batch, rule), steps, then),
    )


def _predicted(job: Job, data: TrainingData, say: Callable[[str], None]) -> Estimate:
    """The best plan for the job on this host."""
    planner = Planner(job, data, find_cluster(HERE, probe_this_host, say), ("fp32",), say)
    planner.sample_tables(time_rows)
    planner.time_model()
    best = planner.advice("").best
    if best is None:
        raise OnecurveError(f"batch test: no plan with a global batch of {job.global_batch:,} fits on this host")
    return best


def _in_parts(plan: Plan) -> Plan:
    """The plan, with at least two parts of a batch whose gradients can be compared."""
    if plan.mesh.data * plan.rounds > 1:
        return plan
    if isinstance(plan.micro_batch, tuple) or plan.micro_batch % 2:
        raise OnecurveError(f"batch test: a global batch of {plan.global_batch} cannot be halved; give an even one")
    return replace(plan, micro_batch=plan.micro_batch // 2, rounds=2)


def _base_lr(folder: Path, job: Job, steps: int) -> float:
    """The learning rate before the schedule, from the step in which the schedule's factor is largest."""
    factors = {step + 1: job.lr_factor(step, steps) for step in range(steps)}
    largest = max(factors, key=lambda step: factors[step])
    records = (record for record in read_records(folder) if isinstance(record, StepRecord))
    return next(record.lr / factors[largest] for record in records if record.step == largest)


def _choice(batch: int, lr: float, steps: int, estimate: Estimate) -> BatchChoice:
    return BatchChoice(
        global_batch=batch,
        lr=lr,
        steps=steps,
        samples=steps * batch,
        hours=steps * estimate.step / 3600,
        plan=estimate.plan,
    )
