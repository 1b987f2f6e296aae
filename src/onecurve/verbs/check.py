"""onecurve check: does the split job compute the same as one device? This side starts the ranks once, for all plans."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import InterruptError, OnecurveError, SignalName
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.requests import CheckRequest
from onecurve.describe.units import counted
from onecurve.describe.verdict import CheckResult, Outcome, Verdict
from onecurve.device.environment import is_rank_of_launcher, is_rank_of_torchrun
from onecurve.job.script_path import Script, script_path
from onecurve.launch.failure import RankFailedError
from onecurve.launch.local import LocalRanks
from onecurve.launch.stop import StopRequest
from onecurve.planner.plan_choice import read_plan
from onecurve.report.check_table import CheckTable
from onecurve.report.log import is_verbose
from onecurve.verbs.check_journal import CheckJournal
from onecurve.verbs.program import PROGRAM
from onecurve.verbs.shown import ShownCheck

_STEPS: dict[Precision, int] = {"fp64": 4, "fp32": 50}
_MAX_DEFAULT_RANKS = 4


def check(
    script: Script,
    arguments: Sequence[str] = (),
    *,
    plans: Sequence[str | Plan] = (),
    ranks: int | None = None,
    steps: int | None = None,
    precision: Precision = "fp64",
    at: int | str | None = None,
    quiet: bool = False,
) -> ShownCheck | None:
    """Prove that a job computes the same under each plan as on one device, as `onecurve check` does.

    A plan that fails or makes no progress does not end the check: the others are still compared.

    Args:
        script: The Python file that defines `job()`, or that function itself; the ranks import the file. With `at`, the
            folder of a run, for example `"runs/gpt"`.
        arguments: Arguments of `job()`, as texts `"name=value"`. Default: none.
        plans: The plans to check: `onecurve.Plan`, short text forms, or paths of plan.toml files. Default: a matrix of
            plans for worlds of up to `ranks` ranks.
        ranks: Largest number of ranks in that matrix. Default: None, 4, or the number of accelerators if that is
            smaller.
        steps: Number of optimizer steps to compare. In fp64 one more follows, which begins with slightly moved weights,
            unless the job has no further step. Default: None, 4 in fp64 and 50 in fp32.
        precision: `"fp64"` compares every weight, buffer and gradient after every step; `"fp32"` compares the loss
            curve with those of perturbed runs. Default: `"fp64"`.
        at: Begin with the weights of a run's checkpoint: its step, or `"last"`. The optimizer and the data begin anew.
            Default: None, the weights that the model's constructor makes.
        quiet: Print nothing. Default: False.

    Returns:
        A verdict per plan, and `holds`, which is True if all plans compute the same. None on every rank of torchrun
        except rank 0.

    Example::

        result = oc.check("train.py", plans=["mb4×2"], steps=2)
        print(result.holds, [verdict.size for verdict in result.verdicts])
    """
    checkpoints = checkpoint = ""
    if at is not None:
        script, arguments, checkpoints, checkpoint = _of_run(script, arguments, at)
    path = script_path(script, "check")
    if precision not in _STEPS:
        raise OnecurveError(f"check: precision {precision!r} (known: {', '.join(_STEPS)})")
    if (ranks is not None and ranks < 1) or (steps is not None and steps < 1):
        raise OnecurveError(f"check: ranks = {ranks}, steps = {steps}; both must be at least 1")
    chosen = tuple(_read(plan, precision) for plan in plans)
    request = CheckRequest(
        script=str(path),
        arguments=tuple(arguments),
        plans=chosen,
        ranks=max((plan.mesh.size for plan in chosen), default=ranks or 0),
        steps=steps or _STEPS[precision],
        precision=precision,
        quiet=quiet,
        verbose=is_verbose(),
        checkpoints=checkpoints,
        checkpoint=checkpoint,
    )
    result = _check(request)
    return ShownCheck(**vars(result)) if result is not None else None


def _of_run(run: Script, arguments: Sequence[str], at: int | str) -> tuple[str, Sequence[str], str, str]:
    """The script of a run and its arguments, where its checkpoints are, and the name of the one to begin with."""
    from onecurve.verbs.run_checkpoint import checkpoint_at, checkpoints_of, origin_of  # imports torch

    if not isinstance(run, str | Path) or Path(run).is_file():
        given = str(run) if isinstance(run, str | Path) else type(run).__name__
        raise OnecurveError(f"check: --at needs the folder of a run, for example runs/gpt, instead of {given}")
    folder = Path(run)
    checkpoint = checkpoint_at(folder, at)
    origin = origin_of(folder, arguments)
    return origin.script, origin.arguments, checkpoints_of(folder), checkpoint.name


def _check(request: CheckRequest) -> CheckResult | None:
    if is_rank_of_launcher() or request.ranks == 1:
        return _check_here(request)
    with (
        tempfile.TemporaryDirectory(prefix="onecurve-check-") as folder,
        LocalRanks(PROGRAM, "check", to_json(request)) as launcher,
    ):
        request = replace(request, folder=folder, ranks=request.ranks or _default_ranks(launcher))
        return check_in_ranks(request, lambda: launcher.run("check", to_json(request), request.ranks).signal)


def _check_here(request: CheckRequest) -> CheckResult | None:
    """Check in this process: alone, or as a rank that another launcher started."""
    from onecurve.device.world import World
    from onecurve.verbs.check_worker import check_plans
    from onecurve.verbs.launched import launched_world

    with StopRequest(alone=not is_rank_of_torchrun()) as stop, launched_world(Path.cwd()) as launched:
        world = launched or World()
        if request.ranks > world.size:
            raise OnecurveError(
                f"check: a plan needs {counted(request.ranks, 'rank')}, but this world has {world.size}; start more "
                "ranks"
            )
        return check_plans(replace(request, ranks=request.ranks or world.size), world, stop)


def check_in_ranks(request: CheckRequest, start: Callable[[], SignalName | None]) -> CheckResult:
    """Start the ranks; if a plan ends them, start them again for the plans that follow it.

    `start` runs the check in every rank. It returns the signal that interrupted it, or None, and raises
    RankFailedError.
    """
    journal = CheckJournal(Path(request.folder))
    while True:
        try:
            stopped = start()
            if stopped is not None:
                raise InterruptError(f"interrupted by {stopped} before all plans were checked", stopped)
            return journal.result(request.precision)
        except RankFailedError as error:
            plan, agenda = journal.running, journal.agenda
            if not plan or agenda is None:
                raise
            outcome: Outcome = "refused" if error.is_input_error else "failed"
            verdict = Verdict(plan=plan, outcome=outcome, reason=str(error))
            journal.add(verdict)
            if not request.quiet:
                CheckTable([resolved.plan for resolved in agenda.plans], Console()).add(verdict)


def _read(plan: str | Plan, precision: Precision) -> Plan:
    chosen = read_plan(plan)
    if chosen is None:
        raise OnecurveError("check: give a plan, or no --plan at all for a matrix of plans; 'auto' is for onecurve run")
    return replace(chosen, precision=precision)


def _default_ranks(launcher: LocalRanks) -> int:
    host = from_json(Cluster, launcher.ask("devices", "{}").encode(), "devices")
    return _MAX_DEFAULT_RANKS if host.device_kind == "cpu" else min(_MAX_DEFAULT_RANKS, host.devices)
