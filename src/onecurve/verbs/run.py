"""onecurve run: train. This side starts the ranks; run_worker.py is what each rank does.

It does not import torch, which takes seconds: the processes that it starts answer what needs torch (host_worker.py).
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from onecurve.describe.change import read_change
from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_json, from_plain, read_toml, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.estimate import Estimate, PredictedStep
from onecurve.describe.host import HostRange
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.record import ExitRecord
from onecurve.describe.requests import CalibrationRequest, PlanRequest, RunRequest
from onecurve.describe.summary import RunSummary
from onecurve.describe.units import counted
from onecurve.device.environment import is_rank_of_launcher, is_rank_of_torchrun
from onecurve.hosts.recovery import lead
from onecurve.hosts.rendezvous import Alone
from onecurve.job.script_path import Script, has_own_loop, script_path
from onecurve.launch.local import LocalRanks
from onecurve.launch.stop import StopRequest
from onecurve.planner.plan_choice import AUTO, ranks_for, read_plan, read_precisions
from onecurve.report.log import is_verbose
from onecurve.report.sink import JsonLines
from onecurve.runs.folder import CHECKPOINTS, MEETING, PLAN, records_file, refuse_foreign_folder
from onecurve.verbs.command_start import command_start
from onecurve.verbs.crews import HostCrew
from onecurve.verbs.hosts import Hosts, joined_hosts
from onecurve.verbs.notebook_progress import in_notebook, shown_progress
from onecurve.verbs.program import PROGRAM
from onecurve.verbs.run_hosts import HostsRun
from onecurve.verbs.run_loop import LoopRun
from onecurve.verbs.shown import TrainedRun
from onecurve.verbs.trackers import check_names

_MIN_STEPS_TO_CALIBRATE = 20


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
    audit: int | None = None,
    hosts: int | str | None = None,
    join: str | None = None,
    key_file: str | Path | None = None,
    quiet: bool = False,
    track: str | Sequence[str] = (),
    metrics: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> TrainedRun | None:
    """Train the job of a script, as `onecurve run` does.

    A script that has no `job()` but calls `onecurve.prepare` is run as a program, on every rank.

    The call starts the ranks on this host, and continues from the newest checkpoint in the run's folder. Under
    torchrun, the calling process is one of the ranks. Under srun or mpirun it is a rank if they start several processes
    per host; with one process per host, the processes work together as with `hosts`.

    SIGINT (Ctrl-C), SIGTERM and SIGHUP end the run after its step and save it; `ended` in the summary then names the
    signal. A signal before the first step, or a second one, raises an error instead.

    Args:
        script: The Python file that defines `job()`, or that function itself; the ranks import the file.
        arguments: Arguments of `job()`, as texts `"name=value"`. Default: none.
        plan: How to split the job: a `onecurve.Plan`, its short text form, or the path of a plan.toml. Default:
            `"auto"`, the plan of the run that is continued, or else the best plan that is found for the hosts.
        ranks: Number of processes; the model is replicated on each, without planning. Default: None, those of the plan.
        out: The run's folder, for checkpoints, records and weights. Default: None, `runs/` and the script's name.
        precision: Precisions that an automatic plan may compute in: `"fp32"`, `"bf16"`, `"fp16"`. Default: None, fp32.
        fresh: Start over, and remove the earlier run in the folder. Default: False.
        change: Fields of the job that have changed since the checkpoint was saved: `"lr"`, `"schedule"`,
            `"global_batch"`, `"steps"`, `"data"`. The run continues with the new values, and records the old and the
            new ones. Default: none; a changed job is refused.
        check: Prove before the first update that the plan computes the same as one device, and stop if it does not: one
            step of a few samples, in float64. A job that was proved before is not proved again. Default: True.
        audit: One in this many steps is computed a second time by another rank, and a gradient that differs ends the
            run: see `Job.audit`. Default: None, as the job says.
        hosts: Number of hosts, or `"MIN:MAX"`. Start the same command on each of them; they meet in the run's folder,
            unless `join` is given. Default: None, 1, or under srun and mpirun theirs.
        join: Where hosts meet that do not see the run's folder: `"HOST:PORT"`, an address of one of them, or
            `"etcd://HOST:PORT,…"` (`etcds` for TLS). Default: None, in the folder.
        key_file: A file of 32 random bytes, the same on every host, that only its owner can read; needed for
            `"HOST:PORT"`. Default: None.
        quiet: Print nothing. Default: False.
        track: Trackers that receive the values of the run, besides those of the job: `"tensorboard"`, `"mlflow"`,
            `"wandb"`. Default: none.
        metrics: Port at which the newest values are served to Prometheus, on this host alone. Default: None, no port.
        say: A function that is called with short texts about what is being planned. Default: they are dropped.

    Returns:
        How the run ended: its loss, evaluation, number of steps and seconds. `records()` returns the records of its
        steps, and `plot()` its loss curve for a notebook. None in processes without rank 0: on other hosts, and in
        other ranks of torchrun, srun and mpirun.

    Example::

        summary = oc.run("train.py", ["lr=1e-3"], plan="mb8", out="runs/first")
        print(summary.steps, "steps, loss", summary.loss)
        oc.run("train.py", ["lr=1e-4", "steps=6"], plan="mb8", out="runs/first", change=["lr", "steps"])
    """
    script = script_path(script, "run")
    folder = run_folder(script, out)
    chosen = read_plan(plan)
    changed = read_change(change)
    if changed and fresh:
        raise OnecurveError(
            f"--change {','.join(changed)} continues a run, and --fresh starts a new one; give only one of the two"
        )
    request = RunRequest(
        script=str(script),
        arguments=tuple(arguments),
        out=str(folder),
        fresh=fresh,
        change=changed,
        check=check,
        audit=audit,
        quiet=quiet,
        track=_names(track),
        metrics=metrics,
        verbose=is_verbose(),
        begin=command_start(),
    )
    joined = joined_hosts(hosts, folder / MEETING, join, key_file, say)
    if has_own_loop(script) and not is_rank_of_launcher():
        _refuse_options_of_jobs(request, precision, out)
        LoopRun(script, arguments, chosen, ranks).run(joined, say)
        return None
    shows = not quiet and in_notebook()
    with shown_progress(folder) if shows else nullcontext():
        summary = _train(replace(request, quiet=quiet or shows), joined, chosen, ranks, precision, say)
    if summary is None:
        return None
    records = JsonLines(records_file(folder, 0))
    records.write(ExitRecord(request.begin, time=time.time()))
    records.close()
    return TrainedRun(**vars(summary))


def _train(
    request: RunRequest,
    joined: Hosts | None,
    chosen: Plan | None,
    ranks: int | None,
    precision: Sequence[str] | None,
    say: Callable[[str], None],
) -> RunSummary | None:
    """Train; return the summary in the process that has, or has started, rank 0."""
    if joined is not None:
        return _run_on_hosts(request, joined, chosen, ranks, precision)
    if is_rank_of_launcher() or ranks == 1 or (chosen is not None and chosen.mesh.size == 1 and ranks is None):
        return _run_here(request, chosen, precision, ranks)
    refuse_foreign_folder(Path(request.out))
    with LocalRanks(PROGRAM, "run", to_json(request), say) as launcher:
        begin = time.time()
        choice = _choose(launcher, request, chosen, ranks, precision)
        return _launch(launcher, replace(request, plan_seconds=time.time() - begin), choice, say)


def _names(track: str | Sequence[str]) -> tuple[str, ...]:
    """The names of trackers, which may be one text with commas."""
    words = track.split(",") if isinstance(track, str) else track
    names = tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
    check_names(names)
    return names


def launch_run(request: RunRequest, plan: Plan | None, say: Callable[[str], None]) -> RunSummary:
    """Train on this host alone, in processes of their own. `plan`: None for the best one."""
    with LocalRanks(PROGRAM, "run", to_json(request), say) as launcher:
        return _launch(launcher, request, _choose(launcher, request, plan, None, None), say)


def run_folder(script: Path, out: str | Path | None) -> Path:
    """The folder of a run: `out`, or runs/ and the script's name."""
    return Path(out) if out is not None else Path("runs") / script.stem


def _refuse_options_of_jobs(request: RunRequest, precision: Sequence[str] | None, out: str | Path | None) -> None:
    """Refuse options that a script with its own loop decides itself."""
    given = {"--out": out is not None, "--fresh": request.fresh, "--change": bool(request.change)}
    given |= {"--precision": precision is not None, "--track": bool(request.track)}
    given |= {"--metrics": request.metrics is not None, "--audit": request.audit is not None}
    for option in (option for option, is_given in given.items() if is_given):
        raise OnecurveError(
            f"{option}: {request.script} has its own training loop instead of job(), which decides this: see oc.prepare"
        )


def _run_on_hosts(
    request: RunRequest, hosts: Hosts, plan: Plan | None, ranks: int | None, precision: Sequence[str] | None
) -> RunSummary | None:
    """Train on this host together with others."""
    if ranks is not None:
        raise OnecurveError(
            "ranks: --ranks counts the processes of one host, but this run has several hosts; give --plan instead"
        )
    if plan is not None:
        _refuse_precision(precision)
    earlier, precisions = _earlier_plan(request, precision)
    with LocalRanks(PROGRAM, "run", to_json(request), hosts.say) as launcher:
        return HostsRun(
            request=request, plan=plan, earlier=earlier, precisions=precisions, hosts=hosts, launcher=launcher
        ).run()


def _run_here(
    request: RunRequest, plan: Plan | None, precision: Sequence[str] | None, ranks: int | None
) -> RunSummary | None:
    """Train in this process: alone, or as a rank that another launcher started."""
    if not is_rank_of_launcher():
        refuse_foreign_folder(Path(request.out))
        _refuse_precision(precision)
        ranks_for(plan, ranks, None)
        _show_start(request, 1, imports=True)
    from onecurve.device.world import World
    from onecurve.verbs.launched import launched_world
    from onecurve.verbs.run_worker import Training

    stop_request = StopRequest(alone=not is_rank_of_torchrun(), answers=not (is_rank_of_launcher() or request.quiet))
    with stop_request as stop, launched_world(Path(request.out)) as world:
        stop_request.has_begun = lambda: False
        training = Training(request)
        stop_request.has_begun = lambda: training.has_begun
        return training.train(plan, world or World(), stop)


@dataclass(frozen=True)
class _Choice:
    """How many ranks to start, and how they split the job."""

    ranks: int
    plan: Plan | None
    estimate: Estimate | None = None
    """The prediction for the plan, if it was found by this command."""


def _choose(
    launcher: LocalRanks, request: RunRequest, plan: Plan | None, ranks: int | None, precision: Sequence[str] | None
) -> _Choice:
    if plan is not None or ranks is not None:
        _refuse_precision(precision)
        return _Choice(ranks_for(plan, ranks, None), plan)
    earlier, precisions = _earlier_plan(request, precision)
    if earlier is not None:
        return _Choice(earlier.mesh.size, earlier)
    question = PlanRequest(script=request.script, arguments=request.arguments, precisions=tuple(precisions))
    answer = launcher.ask("plan", to_json(question))
    if answer:
        estimate = from_json(Estimate, answer.encode(), "plan")
        return _Choice(estimate.plan.mesh.size, estimate.plan, estimate)
    host = from_json(Cluster, launcher.ask("devices", "{}").encode(), "devices")
    return _Choice(ranks_for(None, None, host), None)


def _refuse_precision(precision: Sequence[str] | None) -> None:
    if precision is not None:
        raise OnecurveError("precision: only a run that plans by itself takes it; write it into the plan instead")


def _launch(launcher: LocalRanks, request: RunRequest, choice: _Choice, say: Callable[[str], None]) -> RunSummary:
    """Train on this host alone."""
    estimate, ranks = choice.estimate, choice.ranks
    _show_start(request, ranks, imports=estimate is None)  # planning has imported them
    crew = HostCrew(ranks, choice.plan, estimate.predicted_step if estimate is not None else PredictedStep())
    alone = HostRange(1, 1)
    result, _ = Hosts(alone, Alone(), say).conduct(
        launcher,
        question=None,
        conduct=lambda leader: lead(leader, "run", alone, crew),
        request=lambda _: to_json(request),
    )
    summary = from_plain(RunSummary, json.loads(result), "summary")
    if estimate is not None and summary.steps >= _MIN_STEPS_TO_CALIBRATE:
        question = CalibrationRequest(predicted=estimate.step, measured=summary.step_seconds)
        launcher.ask("calibrate", to_json(question))
    return summary


def _show_start(request: RunRequest, ranks: int, imports: bool) -> None:
    """Print that ranks start, for a person who waits at a terminal."""
    if sys.stdout.isatty() and not request.quiet:
        what = f": importing torch and {request.script}" if imports else ""
        print(f"starting {counted(ranks, 'rank')}{what}", flush=True)


def _earlier_plan(request: RunRequest, precision: Sequence[str] | None) -> tuple[Plan | None, list[Precision]]:
    """Return the plan of the run that is to be continued, or None, and the precisions that a new plan may have."""
    folder = Path(request.out)
    file = folder / PLAN
    if request.fresh or not file.exists() or not any((folder / CHECKPOINTS).glob("step-*")):
        return None, read_precisions(precision or ["fp32"])
    earlier = read_toml(Plan, file)
    if "global_batch" in request.change:  # the plan has the earlier batch; its precision stays
        return None, read_precisions(precision or [earlier.precision])
    return earlier, read_precisions(precision or ["fp32"])
