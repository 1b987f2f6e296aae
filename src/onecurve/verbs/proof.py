"""The proof before training: two steps under the run's plan, reduced, compared with one device in float64."""

import copy
import gc
import logging
import math
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from onecurve.data.training_data import TrainingData
from onecurve.describe.errors import OnecurveError, is_refusal
from onecurve.describe.plan import Plan
from onecurve.describe.record import EventRecord
from onecurve.describe.requests import RunRequest
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.run_agenda import ProofAgenda
from onecurve.describe.units import bytes_text, count_text, counted, seconds_text
from onecurve.describe.verdict import Verdict
from onecurve.device.collectives import broadcast_first_text
from onecurve.device.device import Device, local_cluster
from onecurve.device.rng import preserve_rng_state
from onecurve.device.scratch import scratch_folder
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.launch.failure_report import is_out_of_memory, lost_connection
from onecurve.model.deferred import DeferredModel, defer_init
from onecurve.model.materialize import Materializer
from onecurve.model.recorder import build_real
from onecurve.model.unchanged import functions_kept
from onecurve.planner.completion import PlanCompleter
from onecurve.planner.shallow_model import ShallowModel, surplus_blocks
from onecurve.planner.traced_model import TRACE_SAMPLES, TracedModel
from onecurve.prove.reduced_plan import reduced_plan
from onecurve.runs.folder import read_origin
from onecurve.runtime.assembly import refuse_unmatched_groups
from onecurve.runtime.row_tables import RowAccess
from onecurve.verbs.plan_checker import PlanChecker
from onecurve.verbs.proof_memory import proof_key, remember, remembered

_log = logging.getLogger(__name__)

_WHOLE_MODEL_PARAMETERS = 10_000_000
"""A larger model is proved without most of its identical blocks."""
_MIN_BLOCKS_PER_KIND = 2
"""One alone would have no sibling, and would not be wrapped as a block."""
_BYTES_PER_PARAMETER = 64
"""Memory of two float64 replicas: weights, gradients and two tensors of optimizer state."""
_STORED_BYTES_PER_PARAMETER = 40
"""What the one-device run leaves in files: weights and gradients of two steps, and how weights are moved in between."""


class PlanProof:
    """The proof of the plan of one run. Every rank has one."""

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self.key = ""
        """Identifies what was proved; empty if nothing was."""
        self.event: EventRecord | None = None
        """What was proved, or why nothing was; None if there was nothing to prove."""

    def agenda(
        self,
        job: Job,
        data: TrainingData,
        deferred: DeferredModel,
        resolved: ResolvedPlan,
        fingerprint: Mapping[str, str],
    ) -> ProofAgenda:
        """Decide on the first rank, before the process group exists, what is to be proved."""
        kind = local_cluster().device_kind
        key = proof_key(job, fingerprint, self._request.arguments, deferred.module, resolved.plan, kind)
        text = remembered(key) or self._proved_in_folder(key)
        if text:
            return ProofAgenda(key, remembered=text)
        with functions_kept(*_functions(job)):
            return replace(_agenda(job, data, deferred, resolved), key=key, plan=str(resolved.plan))

    def prove(
        self,
        agenda: ProofAgenda,
        job: Job,
        data: TrainingData,
        device: Device,
        world: World,
        rows: RowAccess | None,
    ) -> None:
        """Raise OnecurveError if the plan computes something else. All ranks of the world call it.

        `rows`: how row servers are reached."""
        if agenda.remembered:
            self._hold(agenda.key, f"earlier: {agenda.remembered}")
        elif agenda.obstacle or agenda.resolved is None:
            self._warn(agenda.obstacle)
        else:
            with preserve_rng_state(), functions_kept(*_functions(job)):
                self._prove(agenda, agenda.resolved, _proof_job(job, agenda), data, device, world, rows)
            gc.collect()  # modules are full of cycles, and the run needs the memory

    def _prove(
        self,
        agenda: ProofAgenda,
        resolved: ResolvedPlan,
        job: Job,
        data: TrainingData,
        device: Device,
        world: World,
        rows: RowAccess | None,
    ) -> None:
        began = time.monotonic()
        if world.rank == 0 and sys.stdout.isatty() and not self._request.quiet:
            print(f"proving {resolved.plan} against one device", flush=True)
        with _shared_folder(world, Path(self._request.out)) as folder:
            if folder is None:
                self._warn("no temporary folder can be written")
                return
            build = _build_recorded if agenda.left_out else build_real
            checker = PlanChecker(job, data, device, world, 1, "fp64", folder, resolved.changed_buffers, build, rows)
            obstacle = _train_reference(checker, resolved.plan, world)
            if obstacle:
                self._warn(obstacle)
                return
            steps = _steps_text(checker, resolved.plan)
            verdict = self._verdict(checker, resolved, agenda.plan)  # ends with an exchange: all have read the folder
        if not verdict.holds:
            raise OnecurveError(self._refusal(verdict, agenda.plan))
        blocks = f"{len(agenda.left_out)} identical blocks left out" if agenda.left_out else "the whole model"
        if checker.has_dropout:
            blocks += ", without dropout"
        text = (
            f"{verdict.plan} computes the same as one device (largest difference {verdict.size:.0e}, limit "
            f"{verdict.limit:.0e}; {blocks}, {steps}, {seconds_text(time.monotonic() - began)})"
        )
        self._hold(agenda.key, text)
        if world.rank == 0:
            remember(agenda.key, text)

    def _verdict(self, checker: PlanChecker, resolved: ResolvedPlan, plan: str) -> Verdict:
        """Compare the plan. One device has computed the steps, so an error is not one of the user's code alone."""
        try:
            return checker.check(resolved)
        except Exception as error:
            if is_refusal(error) or is_out_of_memory(error) or lost_connection(error):
                raise
            raise OnecurveError(
                f"plan {plan}: the model does not run under it, although one device computes its steps: "
                f"{_first_line(error)} (found before training, as {resolved.plan}); use {_other_plans(plan)}"
            ) from error

    def _refusal(self, verdict: Verdict, plan: str) -> str:
        if verdict.reason:
            return f"{verdict.reason}\nfound while the plan was proved before training, as {verdict.plan}"
        asked = self._request
        command = shlex.join(["onecurve", "check", asked.script, *asked.arguments, "--plan", plan])
        where = " at moved weights" if verdict.moved else ""
        return (
            f"plan {plan}: it does not compute the same as one device. Before the first update, "
            f"under {verdict.plan}, {verdict.tensor} differs{where} by {verdict.size:.1e} of its scale (limit "
            f"{verdict.limit:.0e}); use {_other_plans(plan)}, compare step by step with: {command}, or train without "
            "proof: --no-check"
        )

    def _proved_in_folder(self, key: str) -> str:
        """A run that is continued on another host was proved there."""
        try:
            origin = read_origin(Path(self._request.out))
        except (OnecurveError, OSError):
            return ""
        return "when this run was started" if key and origin is not None and origin.proof == key else ""

    def _hold(self, key: str, text: str) -> None:
        self.key, self.event = key, EventRecord("proved", text)

    def _warn(self, reason: str) -> None:
        self.event = EventRecord("warning", f"the plan is not proved before training: {reason}")


def _other_plans(plan: str) -> str:
    """Plans that change less of the model than this one, and that nearly every model supports."""
    parsed = Plan.parse(plan)
    batch, ranks, precision = parsed.global_batch, parsed.mesh.size, parsed.precision
    replicate = [f"replicate{ranks} mb{batch // ranks} {precision}"] if batch % ranks == 0 < ranks - 1 else []
    found = [each for each in (*replicate, f"mb{batch} {precision}") if each != plan]
    return f"another plan, for example {' or '.join(map(repr, found))}" if found else "another plan"


def _functions(job: Job) -> list[Any]:
    """The user's functions, which may keep a state: a constructor may enter its model in a global list."""
    return [job.model, job.loss, *job.metrics.values(), *job.optimizers.values()]


def _agenda(job: Job, data: TrainingData, deferred: DeferredModel, resolved: ResolvedPlan) -> ProofAgenda:
    """Reduce the plan, and the model too if it is large."""
    agenda, parameters = ProofAgenda(resolved=replace(resolved, plan=reduced_plan(resolved.plan))), deferred.parameters
    if parameters > _WHOLE_MODEL_PARAMETERS and deferred.recorder is not None:
        try:
            agenda, parameters = _without_surplus_blocks(agenda, job, data, deferred)
        except Exception:  # a smaller model, run on fake tensors, may raise anything: it is not the model of the job
            _log.info("the model cannot be made smaller, so it is compared whole", exc_info=True)
    obstacle = _missing_memory(parameters)
    return ProofAgenda(obstacle=obstacle) if obstacle else agenda


def _without_surplus_blocks(
    agenda: ProofAgenda, job: Job, data: TrainingData, deferred: DeferredModel
) -> tuple[ProofAgenda, int]:
    """Leave out blocks that are identical to others; return the number of parameters that remain too."""
    assert agenda.resolved is not None
    plan = agenda.resolved.plan
    kinds = TracedModel(job, data, deferred).kinds(TRACE_SAMPLES)
    left_out = tuple(surplus_blocks(kinds, max(_MIN_BLOCKS_PER_KIND, plan.stage_count)))
    if not left_out:
        return agenda, deferred.parameters
    agenda = replace(agenda, left_out=left_out)
    small = _proof_job(job, agenda)
    shallow = defer_init(small.model, small.seed)
    refuse_unmatched_groups(small, shallow)
    resolved = PlanCompleter(small, data, shallow).resolve(replace(plan, stages=()))
    return replace(agenda, resolved=resolved), shallow.parameters


def _proof_job(job: Job, agenda: ProofAgenda) -> Job:
    """The job with the batch of the reduced plan, and without the blocks that are left out."""
    assert agenda.resolved is not None
    model = ShallowModel(job.model, agenda.left_out) if agenda.left_out else job.model
    loss = copy.deepcopy(job.loss) if isinstance(job.loss, nn.Module) else job.loss  # its buffers may change
    return replace(job, model=model, loss=loss, global_batch=agenda.resolved.plan.global_batch)


def _missing_memory(parameters: int) -> str:
    """Return what a proof of so many parameters needs and this host lacks; empty if it has it."""
    memory, disk = local_cluster().memory, shutil.disk_usage(tempfile.gettempdir()).free
    for needed, available, what in (
        (_BYTES_PER_PARAMETER * parameters, memory, "memory"),
        (_STORED_BYTES_PER_PARAMETER * parameters, disk, f"space in {tempfile.gettempdir()}"),
    ):
        if needed > available:
            return (
                f"one float64 step of {count_text(parameters)} parameters needs {bytes_text(needed)} of {what}, and "
                f"there is {bytes_text(available)}"
            )
    return ""


def _train_reference(checker: PlanChecker, plan: Plan, world: World) -> str:
    """Train on one device, on the first rank; return on all ranks why that is impossible, if it is.

    If the job is refused, all ranks raise that. The user's own code may fail only because of float64; if it does not,
    the run itself raises the same.
    """
    obstacle, refusal = "", None
    reference = checker.references.variant(plan)
    if world.rank == 0:
        try:
            checker.references.train_alone([plan])
            if not all(map(math.isfinite, checker.references.run(reference, 0).losses)):
                obstacle = "the loss of its first samples is not finite on one device"
        except Exception as error:
            _log.info("the one-device step failed", exc_info=True)
            obstacle = f"one device cannot compute a step in float64 ({_first_line(error)})"
            refusal = error if is_refusal(error) else None
    group = dist.group.WORLD if world.size > 1 else None
    refused = broadcast_first_text(group, str(refusal) if refusal is not None else "")
    if refused:
        raise refusal or OnecurveError(refused)
    obstacle = broadcast_first_text(group, obstacle)
    is_visible = bool(obstacle) or checker.references.folder(reference).is_dir()
    return obstacle or broadcast_first_text(
        group, "" if is_visible else f"rank {world.rank} does not see the first rank's files; use a shared --out"
    )


def _steps_text(checker: PlanChecker, plan: Plan) -> str:
    """Which steps are compared, and what they do not show."""
    samples = counted(plan.global_batch, "sample")
    count = len(checker.references.run(checker.references.variant(plan), 0).losses)
    steps = f"two steps of {samples}, the second from moved weights" if count > 1 else f"one step of {samples}"
    return "; ".join([steps, *checker.moved_notes(plan)])


@contextmanager
def _shared_folder(world: World, out: Path) -> Iterator[Path | None]:
    """A temporary folder of the first rank; on several hosts next to the run's folder, which they share."""
    name = ""
    if world.rank == 0:
        try:
            name = _proof_folder(out, world)
        except OSError:
            _log.info("no folder for the one-device step", exc_info=True)
    name = broadcast_first_text(dist.group.WORLD if world.size > 1 else None, name)
    try:
        yield Path(name) if name else None
    finally:
        if world.rank == 0 and name:
            shutil.rmtree(name, ignore_errors=True)


def _proof_folder(out: Path, world: World) -> str:
    if world.local_size == world.size:
        return tempfile.mkdtemp(prefix="onecurve-proof-", dir=scratch_folder())
    prefix, beside = f".onecurve-proof-{out.name}-", out.resolve().parent
    for abandoned in beside.glob(f"{prefix}*"):  # of a run that was killed: this one holds the lock of the folder
        shutil.rmtree(abandoned, ignore_errors=True)
    return tempfile.mkdtemp(prefix=prefix, dir=beside)


def _build_recorded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module without allocating the blocks that are left out of it."""
    deferred = defer_init(build, seed)
    Materializer(deferred.recorder, torch.device("cpu")).materialize(deferred.module)
    return deferred.module


def _first_line(error: Exception) -> str:
    text = str(error).partition(chr(10))[0]
    return text if isinstance(error, OnecurveError) else f"{type(error).__name__}: {text}"
