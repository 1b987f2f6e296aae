"""One rank of `onecurve check`: the ranks train the one-device references, then compare every plan with them."""

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from onecurve.data.training_data import TrainingData, open_data
from onecurve.describe.convert import from_json, to_plain
from onecurve.describe.errors import InterruptError, OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.plan_validation import validate
from onecurve.describe.requests import CheckRequest
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.verdict import CheckResult
from onecurve.device.collectives import all_gather_text
from onecurve.device.cores import pin_to_cores
from onecurve.device.device import local_cluster, local_device
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.launch.stop import StopRequest
from onecurve.planner.completion import PlanCompleter
from onecurve.prove.comparison import LIMIT
from onecurve.prove.loss_curve import MAX_CURVE_EXCESS
from onecurve.prove.matrix import plan_matrix
from onecurve.report.check_table import CheckTable
from onecurve.report.log import log_to_stderr
from onecurve.runtime.first_rank import derive_on_first_rank
from onecurve.runtime.manual import refuse_manual_backward
from onecurve.verbs.plan_checker import PlanChecker


@dataclass(frozen=True)
class _Resolution:
    """What the first rank derives and passes to all ranks."""

    plans: tuple[ResolvedPlan, ...]
    notes: tuple[str, ...]


def check_as_rank(request: str, stop: StopRequest) -> None:
    """Entry point of a launched rank."""
    asked = from_json(CheckRequest, request.encode(), "request")
    if asked.verbose:
        log_to_stderr()
    result = check_plans(asked, stop)
    if result is not None:
        Path(asked.result).write_text(json.dumps(to_plain(result)))  # Python's JSON keeps NaN and infinity


def check_plans(request: CheckRequest, stop: StopRequest) -> CheckResult | None:
    """Take part in the check of all plans; return the result on rank 0."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    job = load_job(Path(request.script), request.arguments)
    refuse_manual_backward(job, f"{request.script}: not checkable")
    world = World.from_environment() or World()
    cluster = local_cluster()
    pin_to_cores(world.local_rank, world.local_size, threads=0)
    plans = list(request.plans) or plan_matrix(job.global_batch, request.ranks, request.precision)
    for plan in plans:
        validate(plan, job.global_batch, cluster)
    data = open_data(job)
    device = local_device(world.local_rank)
    resolution = derive_on_first_rank(
        _Resolution, lambda: _resolve(plans, job, data, chosen=bool(request.plans)), world, device
    )
    folder = Path(all_gather_text(tempfile.mkdtemp(prefix="onecurve-reference-") if world.rank == 0 else "")[0])
    try:
        checker = PlanChecker(job, data, device, world, min(request.steps, data.steps), request.precision, folder)
        checked = [resolved.plan for resolved in resolution.plans]
        table = CheckTable(checked, Console()) if world.rank == 0 and not request.quiet else None
        if table:
            table.begin(checker.steps, len(checker.variants(checked)))
        checker.train_references(checked)
        verdicts = []
        for resolved in resolution.plans:
            verdicts.append(checker.check(resolved))
            if table:
                table.add(verdicts[-1])
            if any(all_gather_text("stop" if stop() else "")):
                raise InterruptError(f"interrupted after {len(verdicts)} of {len(checked)} plans", stop.signal)
        notes = [*resolution.notes, *checker.notes(verdicts)]
    finally:
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
    world.leave()
    limit = LIMIT if request.precision == "fp64" else MAX_CURVE_EXCESS
    result = CheckResult(request.precision, checker.steps, limit, tuple(verdicts), tuple(notes))
    return result if world.rank == 0 else None


def _resolve(plans: list[Plan], job: Job, data: TrainingData, chosen: bool) -> _Resolution:
    """Complete the plans. One that the model does not allow is an error if the user chose it, else it is left out."""
    completer = PlanCompleter(job, data)
    resolved: list[ResolvedPlan] = []
    refused: dict[tuple[int, int], list[str]] = {}
    for plan in plans:
        split = plan.mesh.tensor, plan.stage_count  # decides whether a model allows a plan
        if split in refused:
            refused[split].append(str(plan))
            continue
        try:
            resolved.append(completer.resolve(plan))
        except OnecurveError as error:
            if chosen:
                raise
            refused[split] = [str(error), str(plan)]
    notes = [f"left out of the matrix ({len(left_out)}): {error}" for error, *left_out in refused.values()]
    return _Resolution(tuple(resolved), tuple(notes))
