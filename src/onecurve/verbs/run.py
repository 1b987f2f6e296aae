"""onecurve run: train. This side plans and starts the ranks; run_worker.py is what each rank does.

If a plan is given, this file imports no more than starting the ranks needs, because they wait for it.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from onecurve.describe.change import read_change
from onecurve.describe.convert import from_plain, read_toml, to_json
from onecurve.describe.errors import InterruptError, OnecurveError
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.requests import RunRequest
from onecurve.describe.summary import RunSummary
from onecurve.device.device import local_cluster
from onecurve.device.world import World
from onecurve.job.script import Script, load_job, script_path
from onecurve.launch.local import LocalRanks
from onecurve.launch.stop import StopRequest
from onecurve.planner.plan_choice import AUTO, ranks_for, read_plan, read_precisions
from onecurve.report.log import is_verbose
from onecurve.runs.folder import CHECKPOINTS, PLAN, refuse_foreign_folder

_MIN_STEPS_TO_CALIBRATE = 20
_SHORT_RUN_SECONDS = 120.0
"""A run that is predicted to take less is not worth timing its model."""


def run(
    script: Script,
    arguments: Sequence[str] = (),
    *,
    plan: str | Plan = AUTO,
    ranks: int | None = None,
    out: str | Path | None = None,
    precision: Sequence[str] | None = None,
    fresh: bool = False,
    change: str | Sequence[str] = (),
    check: bool = True,
    quiet: bool = False,
    tensorboard: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> RunSummary | None:
    """Train the job of a script, as `onecurve run` does.

    It starts its ranks on this host, and continues from the newest checkpoint in the run's folder. Under torchrun it is
    one of the ranks.

    SIGINT (Ctrl-C), SIGTERM and SIGHUP end the run after its step and save it; `ended` in the summary then names the
    signal. A signal before the first step, or a second one, raises an error instead.

    Args:
        script: The Python file that defines `job()`, or that function itself; the ranks import the file.
        arguments: Arguments of `job()`, as texts `"name=value"`. Default: none.
        plan: How to split the job: a `onecurve.Plan`, its short text form, or the path of a plan.toml. Default:
            `"auto"`, the plan of the run that is continued, or else the best plan that is found for this host.
        ranks: Number of processes; the model is replicated on each, without planning. Default: None, those of the plan.
        out: The run's folder, for checkpoints, records and weights. Default: None, `runs/` and the script's name.
        precision: Precisions that an automatic plan may compute in: `"fp32"`, `"bf16"`, `"fp16"`. Default: None, fp32.
        fresh: Start over, and remove the earlier run in the folder. Default: False.
        change: Fields of the job that have changed since the checkpoint was saved: `"lr"`, `"schedule"`,
            `"global_batch"`, `"steps"`. The run continues with the new values, and records the old and the new ones.
            Default: none; a changed job is refused.
        check: Prove before the first update that the plan computes the same as one device, and stop if it does not: one
            step of a few samples, in float64. A job that was proved before is not proved again. Default: True.
        quiet: Print nothing. Default: False.
        tensorboard: Also write TensorBoard events. Default: False.
        say: A function that is called with short texts about what is being planned. Default: they are dropped.

    Returns:
        How the run ended: its loss, evaluation, number of steps and seconds. None on all ranks of torchrun but rank 0.

    Example::

        summary = oc.run("train.py", ["lr=1e-3"], plan="mb8", out="runs/first")
        print(summary.steps, "steps, loss", summary.loss)
        oc.run("train.py", ["lr=1e-4", "steps=6"], plan="mb8", out="runs/first", change=["lr", "steps"])
    """
    script = script_path(script, "run")
    folder = Path(out) if out is not None else Path("runs") / script.stem
    chosen = read_plan(plan)
    changed = read_change(change)
    if changed and fresh:
        raise OnecurveError(
            f"--change {','.join(changed)} continues a run, and --fresh starts a new one; give only one of the two"
        )
    estimate = None
    launched_elsewhere = World.from_environment() is not None
    if not launched_elsewhere:
        refuse_foreign_folder(folder)
        if chosen is None and ranks is None:
            chosen = _plan_of_folder(folder, fresh)
            precisions = read_precisions(precision or ["fp32"])
            if chosen is not None and "global_batch" in changed:  # it has the earlier batch; its precision stays
                precisions = read_precisions(precision or [chosen.precision])
                chosen = None
            if chosen is None:
                estimate = _plan_here(script, arguments, precisions, say)
                chosen = estimate.plan if estimate is not None else None
        elif precision is not None:
            raise OnecurveError("precision: only a run that plans by itself takes it; write it into the plan instead")
        ranks = ranks_for(chosen, ranks, local_cluster())
    request = RunRequest(
        script=str(script),
        arguments=tuple(arguments),
        out=str(folder),
        fresh=fresh,
        change=changed,
        check=check,
        quiet=quiet,
        tensorboard=tensorboard,
        verbose=is_verbose(),
        predicted=estimate.seconds if estimate is not None else {},
    )
    # A process that has planned has threads, and loader processes must not be forked from it.
    if launched_elsewhere or (ranks == 1 and estimate is None):
        from onecurve.verbs.run_worker import Training

        with StopRequest(alone=not launched_elsewhere) as stop:
            return Training(request).train(chosen, World.from_environment() or World(), stop)
    assert ranks is not None
    summary = _launch(request, ranks, chosen, say)
    if estimate is not None and summary.steps >= _MIN_STEPS_TO_CALIBRATE:
        _calibrate(estimate, summary)
    return summary


def _launch(request: RunRequest, ranks: int, plan: Plan | None, say: Callable[[str], None]) -> RunSummary:
    if sys.stdout.isatty() and not request.quiet:
        print(f"starting {ranks} rank{'s' if ranks > 1 else ''}", flush=True)
    with LocalRanks("onecurve.verbs.rank", "run", to_json(request), say) as launcher:
        ended = launcher.run(ranks, plan)
    if ended.results is None:
        raise InterruptError(
            "interrupted before the ranks could finish; earlier checkpoints are unchanged", ended.signal or "SIGINT"
        )
    return from_plain(RunSummary, json.loads(ended.results[0]), "summary")


def _plan_of_folder(folder: Path, fresh: bool) -> Plan | None:
    """Return the plan of the run that is to be continued in this folder, or None if there is no such run."""
    file = folder / PLAN
    if file.exists() and (folder / CHECKPOINTS).exists() and not fresh:
        return read_toml(Plan, file)
    return None


def _plan_here(
    script: Path, arguments: Sequence[str], precisions: Sequence[Precision], say: Callable[[str], None]
) -> Estimate | None:
    """Return the best plan on this host, or None if the job cannot be planned: it is then run as it is."""
    from onecurve.data.training_data import open_data
    from onecurve.planner.clusters import this_host
    from onecurve.planner.planner import Planner
    from onecurve.verbs.probe import probe_this_host

    job = load_job(script, arguments)
    if job.manual_backward:
        return None
    cluster, data = this_host(probe_this_host, say), open_data(job)
    try:
        planner = Planner(job, data, cluster, precisions, say)
    except OnecurveError as error:
        say(f"no plan: {error}; the model is replicated on every rank")
        return None
    best = planner.best()
    if best is not None and best.hours * 3600 > _SHORT_RUN_SECONDS:
        planner.time_model()
        best = planner.best()
    return best


def _calibrate(estimate: Estimate, summary: RunSummary) -> None:
    """Compare the prediction with the measured step time, and correct what is cached about this host."""
    from onecurve.planner.clusters import cache_host, cached_host
    from onecurve.predict.refinement import refined

    cluster = cached_host()
    if summary.step_seconds > 0 and cluster is not None:
        cache_host(replace(cluster, constants=refined(cluster.constants, estimate.step, summary.step_seconds)))
