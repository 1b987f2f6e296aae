"""One rank of `onecurve check`: the ranks train the one-device references, then compare every plan with them."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from onecurve.data.training_data import TrainingData, open_data
from onecurve.describe.changed_buffers import ChangedBuffers
from onecurve.describe.convert import from_json
from onecurve.describe.errors import InterruptError, OnecurveError
from onecurve.describe.generation import Generation
from onecurve.describe.plan import Plan
from onecurve.describe.plan_validation import validate
from onecurve.describe.requests import CheckRequest
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.verdict import CheckResult, Verdict
from onecurve.device.collectives import all_gather_text, barrier
from onecurve.device.cores import pin_to_cores
from onecurve.device.device import local_cluster, local_device
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.launch.launcher import Launcher
from onecurve.launch.stop import Stop
from onecurve.planner.completion import PlanCompleter
from onecurve.prove.matrix import plan_matrix
from onecurve.report.check_table import CheckTable
from onecurve.report.log import log_to_stderr
from onecurve.runtime.first_rank import derive_on_first_rank
from onecurve.runtime.manual import refuse_manual_backward
from onecurve.runtime.same_data import agree_on_data, marks_of
from onecurve.verbs.check_journal import CheckAgenda, CheckJournal, Findings
from onecurve.verbs.plan_checker import PlanChecker
from onecurve.verbs.row_access import row_access


def check_worker(request: str, _: Callable[[str], None]) -> Callable[[World, Stop, Generation], str]:
    """Make the worker of a launched rank. The launcher reads what it finds from the request's folder."""
    asked = from_json(CheckRequest, request.encode(), "request")
    if asked.verbose:
        log_to_stderr()

    def work(world: World, stop: Stop, _: Generation) -> str:
        check_plans(asked, world, stop)
        return ""

    return work


def check_plans(request: CheckRequest, world: World, stop: Stop) -> CheckResult | None:
    """Take part in the check of all plans that have no verdict yet; return the result on rank 0."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    job = load_job(Path(request.script), request.arguments)
    refuse_manual_backward(job, f"{request.script}: not checkable")
    pin_to_cores(world.local_rank, world.local_size, threads=0)
    data = open_data(job)
    device = local_device(world.local_rank)
    known = CheckJournal(Path(request.folder)).agenda if request.folder else None
    marks = marks_of(data.reader, {}, twice=world.rank == 0)
    agenda = derive_on_first_rank(CheckAgenda, lambda: known or _agenda(request, job, data), world, device)
    agree_on_data(marks, world)
    with _folder(request, world) as folder:
        journal = CheckJournal(folder)
        steps = min(request.steps, data.steps)
        checker = PlanChecker(
            job,
            data,
            device,
            world,
            steps,
            request.precision,
            journal.references,
            agenda.changed_buffers,
            rows=row_access(job, stop if isinstance(stop, Launcher) else None, world),
            checkpoint=(request.checkpoints, request.checkpoint) if request.checkpoint else None,
        )
        _check_remaining(checker, journal, agenda, world, request.quiet, stop)
        result = journal.result(request.precision) if world.rank == 0 else None
    world.leave()
    return result


def _check_remaining(
    checker: PlanChecker,
    journal: CheckJournal,
    agenda: CheckAgenda,
    world: World,
    quiet: bool,
    stop: Stop,
) -> None:
    """Check the plans that follow those with a verdict, and enter what is found into the journal."""
    plans = [resolved.plan for resolved in agenda.plans]
    verdicts = journal.verdicts
    is_first_launch = journal.agenda is None
    barrier()  # all ranks have read the journal
    table = CheckTable(plans, Console()) if world.rank == 0 and not quiet else None
    if world.rank == 0 and is_first_launch:
        journal.set_agenda(agenda)
        if table:
            table.begin(checker.steps, checker.reference_count(plans), agenda.refused)
    checker.train_references(plans)

    def note_findings() -> None:
        notes = checker.notes(plans, verdicts)
        if world.rank == 0:
            journal.set_findings(Findings(checker.steps, checker.limit(plans), tuple(notes)))

    note_findings()
    for resolved in agenda.plans[len(verdicts) :]:
        if world.rank == 0:
            journal.begin(str(resolved.plan))
        verdicts.append(checker.check(resolved))
        note_findings()
        if world.rank == 0:
            journal.add(verdicts[-1])
        if table:
            table.add(verdicts[-1])
        if any(all_gather_text("stop" if stop() else "")):
            raise InterruptError(f"interrupted after {len(verdicts)} of {len(plans)} plans", stop.signal)


def _agenda(request: CheckRequest, job: Job, data: TrainingData) -> CheckAgenda:
    """Complete the plans. One that the model does not allow is left out, or gets a verdict if the user chose it.

    The files of the data are compared with their index."""
    data.reader.verify()
    resolver = _Resolver(job, data)
    places_tables = resolver.has_tables and job.row_servers is None
    plans = list(request.plans) or plan_matrix(job.global_batch, request.ranks, request.precision, places_tables)
    answers = [(plan, resolver.resolve(plan)) for plan in plans]
    resolved = tuple(answer for _, answer in answers if isinstance(answer, ResolvedPlan))
    refused = [(plan, answer) for plan, answer in answers if isinstance(answer, str)]
    if not resolved:
        raise OnecurveError("\n".join(dict.fromkeys(reason for _, reason in refused)))
    if request.plans:
        verdicts = [Verdict(plan=str(plan), outcome="refused", reason=reason) for plan, reason in refused]
        return CheckAgenda(resolved, tuple(verdicts), (), resolver.changed_buffers)
    counts = Counter(reason for _, reason in refused)
    notes = [f"left out of the matrix ({count}): {reason}" for reason, count in counts.items()]
    return CheckAgenda(resolved, (), tuple(notes), resolver.changed_buffers)


class _Resolver:
    """Completes plans. The model is asked once about each way to split it."""

    def __init__(self, job: Job, data: TrainingData) -> None:
        self._job, self._cluster = job, local_cluster()
        self._completer = PlanCompleter(job, data)
        self._refusals: dict[object, str] = {}

    @property
    def changed_buffers(self) -> ChangedBuffers:
        return self._completer.changed_buffers

    @property
    def has_tables(self) -> bool:
        return self._completer.has_tables

    def resolve(self, plan: Plan) -> ResolvedPlan | str:
        """Return the completed plan, or why it is refused."""
        try:
            validate(plan, self._job.global_batch, self._cluster)
        except OnecurveError as error:
            return str(error)
        mesh = plan.mesh
        # What decides whether the model allows a plan.
        split = mesh.tensor, plan.stage_count, plan.sequence, mesh.data > 1, bool(plan.tables)
        if split not in self._refusals:
            try:
                return self._completer.resolve(plan)
            except OnecurveError as error:
                self._refusals[split] = str(error)
        return self._refusals[split]


@contextmanager
def _folder(request: CheckRequest, world: World) -> Iterator[Path]:
    """The launcher's folder for the journal, or one of rank 0."""
    if request.folder:
        yield Path(request.folder)
        return
    folder = Path(all_gather_text(tempfile.mkdtemp(prefix="onecurve-check-") if world.rank == 0 else "")[0])
    try:
        yield folder
    finally:
        if world.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
