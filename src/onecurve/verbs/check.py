"""onecurve check: is the split job the same maths as one device?

The largest world is started once and runs every plan in it: the ranks first train the reference, each some of its
variants, then every plan is trained and held against it.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from onecurve.data.training_data import TrainingData, open_data
from onecurve.describe.convert import from_plain, to_json, to_plain
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.plan_validation import validate
from onecurve.describe.requests import CheckRequest
from onecurve.describe.verdict import CheckResult
from onecurve.device.collectives import all_gather_text
from onecurve.device.cores import pin_to_cores
from onecurve.device.device import local_cluster, local_device
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.launch.local import launch
from onecurve.launch.stop import StopRequest
from onecurve.planner.completion import complete_all
from onecurve.planner.plan_choice import as_text, choose_plan
from onecurve.prove.comparison import LIMIT
from onecurve.prove.loss_curve import ALLOWED
from onecurve.prove.matrix import matrix
from onecurve.report.check_table import CheckTable
from onecurve.runtime.manual import refuse_manual_backward
from onecurve.verbs.check_worker import PlanChecker

_STEPS: dict[Precision, int] = {"fp64": 4, "fp32": 50}


def check(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    plans: Sequence[str | Plan] = (),
    ranks: int | None = None,
    steps: int | None = None,
    precision: Precision = "fp64",
    quiet: bool = False,
) -> CheckResult | None:
    """Hold the job of a script, split by each plan, against one device: `oc.check("train.py", ranks=2)`.

    Without `plans` it tries a matrix of them for worlds up to `ranks` (4, as far as there are devices). In float64
    every weight, buffer and gradient is compared after every step; in float32 the loss curve. Under torchrun it returns
    None on all but rank 0.
    """
    if not Path(script).is_file():
        raise OnecurveError(f"{script}: no such file; give the Python file that defines job()")
    if precision not in _STEPS:
        raise OnecurveError(f"check: precision {precision!r} (known: {', '.join(_STEPS)})")
    if (ranks is not None and ranks < 1) or (steps is not None and steps < 1):
        raise OnecurveError(f"check: ranks = {ranks}, steps = {steps}; at least 1 is needed")
    wanted = tuple(map(as_text, plans))
    within = World.from_environment()
    world = max((choose_plan(plan, 0, 0).mesh.size for plan in wanted), default=_default_ranks(ranks, within))
    if within is not None and world > within.size:
        raise OnecurveError(f"check: a plan of {world} ranks in a world of {within.size}; start as many ranks as that")
    with tempfile.TemporaryDirectory(prefix="onecurve-check-") as folder:
        result = Path(folder) / "result.json"
        request = CheckRequest(
            str(script), tuple(arguments), wanted, world, steps or _STEPS[precision], precision, str(result), quiet
        )
        if within is not None or world == 1:
            with StopRequest() as stop:
                return _check(request, stop)
        if not launch("onecurve.verbs.rank", ["check", to_json(request)], world):
            raise OnecurveError("interrupted")
        return from_plain(CheckResult, json.loads(result.read_text()), "check")


def _default_ranks(ranks: int | None, within: World | None) -> int:
    if ranks is not None:
        return ranks
    if within is not None:
        return within.size
    return 4 if local_cluster().device_kind == "cpu" else min(4, local_cluster().devices)


def check_as_rank(request: str, stop: Callable[[], bool]) -> None:
    asked = from_plain(CheckRequest, json.loads(request), "request")
    result = _check(asked, stop)
    if result is not None:
        Path(asked.result).write_text(json.dumps(to_plain(result)))  # JSON proper has no word for infinity


def _check(request: CheckRequest, stop: Callable[[], bool]) -> CheckResult | None:
    """One rank's part in all plans; the result on rank 0."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    job = load_job(Path(request.script), request.arguments)
    refuse_manual_backward(job, f"{request.script}: not checkable")
    world = World.from_environment() or World()
    cluster = local_cluster()
    pin_to_cores(world.local_rank, world.local_size, threads=0)
    plans = _plans(request, job)
    for plan in plans:
        validate(plan, job.global_batch, cluster)
    data = open_data(job)
    plans, left_out = _complete(plans, job, data, chosen=bool(request.plans))
    device = local_device(world.local_rank)
    world.join(device)
    folder = Path(all_gather_text(tempfile.mkdtemp(prefix="onecurve-reference-") if world.rank == 0 else "")[0])
    try:
        shown = CheckTable(plans, Console()) if world.rank == 0 and not request.quiet else None
        proof = PlanChecker(job, data, device, world, min(request.steps, data.steps), request.precision, folder)
        if shown:
            shown.begin(proof.steps, len(proof.variants(plans)))
        proof.train_references(plans)
        verdicts = []
        for plan in plans:
            verdicts.append(proof.hold(plan))
            if shown:
                shown.add(verdicts[-1])
            if any(all_gather_text("stop" if stop() else "")):
                raise OnecurveError(f"interrupted after {len(verdicts)} of {len(plans)} plans")
        notes = [*left_out, *proof.notes(verdicts)]
    finally:
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    world.leave()
    limit = LIMIT if request.precision == "fp64" else ALLOWED
    result = CheckResult(request.precision, proof.steps, limit, tuple(verdicts), tuple(notes))
    return result if world.rank == 0 else None


def _complete(plans: list[Plan], job: Job, data: TrainingData, chosen: bool) -> tuple[list[Plan], list[str]]:
    """Plans made complete. What the model does not allow is an error where the user chose it, else left out."""
    notes: list[str] = []
    completed: dict[int, Plan] = {}
    for split in sorted({_split(plan) for plan in plans}):
        alike = [plan for plan in plans if _split(plan) == split]
        try:
            completed |= {id(plan): whole for plan, whole in zip(alike, complete_all(alike, job, data), strict=True)}
        except OnecurveError as error:
            if chosen:
                raise
            notes.append(f"left out of the matrix ({len(alike)}): {error}")
    return [completed[id(plan)] for plan in plans if id(plan) in completed], notes


def _split(plan: Plan) -> tuple[int, int]:
    """What decides whether a model allows a plan."""
    return plan.mesh.tensor, plan.stage_count


def _plans(request: CheckRequest, job: Job) -> list[Plan]:
    if not request.plans:
        return matrix(job.global_batch, request.ranks, request.precision)
    return [replace(choose_plan(text, 0, 0), precision=request.precision) for text in request.plans]
