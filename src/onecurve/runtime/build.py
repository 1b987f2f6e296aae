"""Builds the runs of a job on this rank, in the order in which things must happen.

What a process needs once is in job_process.py; what belongs to one generation (world, mesh, part, trainer, checkpoints)
is made here.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from onecurve.apply.base_part import BasePart
from onecurve.apply.process_mesh import ProcessMesh, make_mesh
from onecurve.checkpoint.pretrained import load_weights
from onecurve.checkpoint.weights import refuse_unsupported_dtypes
from onecurve.data.loader_pace import Workers
from onecurve.describe.generation import Interruption
from onecurve.describe.job_facts import JobFacts
from onecurve.describe.plan import Plan, default_plan
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.run_agenda import RunAgenda
from onecurve.device.cores import pin_near_device, pin_to_cores
from onecurve.device.device import (
    Device,
    loader_workers,
    local_cluster,
    local_device,
    numa_nodes_of_devices,
    visible_devices,
)
from onecurve.device.world import World
from onecurve.estimate.memory import refuse_if_too_large, state_bytes
from onecurve.job.job import Job
from onecurve.model.adapters import has_adapters
from onecurve.model.deferred import DeferredModel
from onecurve.planner.completion import PlanCompleter
from onecurve.planner.job_profile import optimizer_tensors
from onecurve.runs.folder import LANES
from onecurve.runs.lock import RunLock
from onecurve.runtime.assembly import (
    Assembly,
    ManualAssembly,
    assemble,
    assemble_manual,
)
from onecurve.runtime.audited import start_audit
from onecurve.runtime.changed_job import (
    refuse_change_without_effect,
)
from onecurve.runtime.checkpoints import Checkpoints, KeptMemory, Resumed
from onecurve.runtime.data_cache import meet_hosts
from onecurve.runtime.first_rank import derive_on_first_rank, share_facts
from onecurve.runtime.job_process import JobProcess
from onecurve.runtime.loaders import Loaders
from onecurve.runtime.model_tensors import saved_tensors
from onecurve.runtime.refusals import refuse_unsuitable
from onecurve.runtime.replicas import Replicas
from onecurve.runtime.run import Run
from onecurve.runtime.run_components import RunComponents
from onecurve.runtime.run_settings import RunSettings
from onecurve.runtime.same_data import unstable_texts
from onecurve.runtime.saved_rows import SavedRows
from onecurve.runtime.served_run import note_of_workers
from onecurve.runtime.stopwatch import Stopwatch
from onecurve.runtime.straggler import StragglerDetector
from onecurve.train.early_stopping import BestTracker
from onecurve.train.loss_scale import LossScale
from onecurve.train.state import TrainState
from onecurve.train.step_flags import StepFlags
from onecurve.train.trainer import Trainer


def build_run(job: Job, plan: Plan | None, settings: RunSettings, lock: RunLock | None = None) -> Run:
    """Build the only run of a job in this process, in the world that the environment describes. All ranks must call it.

    `plan`: None replicates the model on every rank. `lock`: released when the run ends, or if it cannot be built.
    """
    return RunBuilder(job, settings).build(plan, World.from_environment() or World(), lock)


class RunBuilder:
    """Builds the runs of a job in this process, one per generation."""

    def __init__(self, job: Job, settings: RunSettings) -> None:
        self._job, self._settings = job, settings
        self._process: JobProcess | None = None
        self._facts: JobFacts | None = None
        self._process_bytes = self._host_cores = 0

    def build(
        self,
        plan: Plan | None,
        world: World,
        lock: RunLock | None = None,
        interruption: Interruption | None = None,
        kept: KeptMemory | None = None,
    ) -> Run:
        """Build this rank's run for one generation. All ranks of the world must call it.

        `interruption`: what ended the generation before; None in the first. `kept`: the memory that the rank's keeper
        keeps; None if it has none.
        """
        try:
            plan = plan or default_plan(self._job.global_batch, world.size)
            return self._build(plan, world, lock, interruption, kept)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def _build(
        self, plan: Plan, world: World, lock: RunLock | None, interruption: Interruption | None, kept: KeptMemory | None
    ) -> Run:
        job, settings = self._job, self._settings
        watch = Stopwatch("build")
        knows_facts = interruption is not None and interruption.facts_known
        seen = visible_devices()
        self._host_cores = self._host_cores or seen.cores  # before this process is pinned to some of them
        refuse_unsuitable(job, plan, settings, world, seen)
        pin_to_cores(world.local_rank, world.local_size, plan.threads)

        data_rank = plan.mesh.data_rank(world.rank)
        is_first = self._process is None
        if self._process is None:  # forks, so the device must not be in use yet
            workers = _loader_workers(job, loader_workers(seen, world.local_size))
            lanes = settings.out / LANES if settings.out is not None else None
            self._process = JobProcess(job, plan, world, workers, lanes)
        else:
            self._process.assign(plan, data_rank)
        process = self._process
        device = local_device(world.local_rank)  # before the next question, which goes to the current device
        self._process_bytes = self._process_bytes or device.used_memory()
        cluster = local_cluster()
        pin_near_device(world.local_rank, numa_nodes_of_devices(world.local_size))
        if is_first:
            process.loaders.training.read_ahead()
        deferred = process.deferred()
        needed = state_bytes(deferred.parameter_bytes, deferred.trainable_bytes, optimizer_tensors(job), plan)
        refuse_if_too_large(needed, plan, cluster, world.local_size)

        with watch.measure("form"):
            is_resolved = interruption is not None and knows_facts and not interruption.plan_changed
            resolved = self._resolve(plan, process, deferred, world, device, knows_facts, is_resolved)
        meet_hosts(process.cache, world)
        mesh = make_mesh(plan.mesh, world.rank, device.kind)
        checkpoints = None
        if settings.out is not None and job.save is not None:
            checkpoints = Checkpoints(
                job.save, settings.out, world, device, resolved.plan, process.saved_fingerprint, settings.change, kept
            )
        is_saved = checkpoints is not None and checkpoints.exist() and not has_adapters(deferred.module)
        if knows_facts and not settings.manual and is_saved:
            deferred = replace(deferred, is_filled_later=True)
        straggler = StragglerDetector(plan, data_rank, settings.waited, settings.on_straggler)
        assembly = self._assemble(resolved, mesh, device, process, deferred, checkpoints, straggler, world)
        if not knows_facts:
            _try_metrics(assembly, process.loaders)
        refuse_unsupported_dtypes(assembly.part.state_dict_tensors)

        # Everything is known to work. Only now may an earlier run's checkpoints be removed.
        with watch.measure("load"):
            starts_over = settings.fresh and (interruption is None or not interruption.has_trained)
            rows = SavedRows(assembly.tables, world.rank)
            resumed = _resume(checkpoints, assembly, rows, starts_over, settings.on_load)
            rows.begin()
        best = BestTracker(job.evaluate) if job.evaluate is not None else None
        steps = self._start(process, assembly, resumed, best)
        warnings = [*process.model_messages, assembly.note if isinstance(assembly, Assembly) else ""]
        if assembly.tables is not None and assembly.tables.names:
            names = ", ".join(assembly.tables.names)
            warnings.append(f"the rows of the embedding tables ({names}) are in the checkpoints, not in the weights")
            warnings.append(job.staleness.note)
        warnings += [note_of_workers(job), process.data.note, unstable_texts(process.marks), process.overlap]
        if job.weights is not None and (resumed is None or assembly.part.unsaved):
            warnings.append(_load_weights(Path(job.weights), assembly.part, process, resumed is not None))
        assembly.part.drop_gathered()
        start_audit(job, plan, mesh, device, assembly.part, assembly.trainer, process.loaders.training, settings)
        self._facts = process.facts(resolved)
        settings.on_facts()
        return Run(
            RunComponents(
                job=job,
                plan=resolved.plan,
                world=world,
                device=device,
                data_rank=data_rank,
                part=assembly.part,
                tables=assembly.tables,
                rows=rows,
                trainer=assembly.trainer,
                loaders=process.loaders,
                cache=process.cache,
                steps=steps,
                host_cores=self._host_cores,
                epoch_samples=process.data.epoch_samples,
                parameters=process.parameters,
                checkpoints=checkpoints,
                straggler=straggler,
                replicas=Replicas(
                    [tensor.local for tensor in assembly.part.parameters], mesh.replica_group, mesh.replica_ranks
                ),
                best=best,
                state=resumed.state if resumed is not None else TrainState(),
                resumed=resumed.text if resumed is not None else "",
                changed=_changes_text(resumed) if resumed is not None else "",
                warning="; ".join(filter(None, warnings)),
                facts=self._facts,
                fingerprint=process.saved_fingerprint,
                start_seconds=watch.seconds(),
                process_bytes=self._process_bytes,
                lock=lock,
                on_event=settings.on_event,
                hand_over=settings.hand_over,
                on_interruption=settings.on_interruption,
            )
        )

    def _resolve(
        self,
        plan: Plan,
        process: JobProcess,
        deferred: DeferredModel,
        world: World,
        device: Device,
        knows_facts: bool,
        is_resolved: bool,
    ) -> ResolvedPlan:
        """Join the world; return the resolved plan, derived by the first rank, or known since an earlier generation.

        `knows_facts`, `is_resolved`: a rank knows the `JobFacts`, and they are about this plan.
        """
        if is_resolved:
            world.join(device)
            process.agree_on_data(world)
            facts = share_facts(self._facts, world)
            process.know(facts)
            return facts.resolved
        agenda = derive_on_first_rank(RunAgenda, lambda: self._agenda(plan, process, deferred), world, device)
        process.agree_on_data(world)  # before the proof, which would find a difference too, and not its cause
        process.know(share_facts(self._facts, world) if knows_facts else None)
        if self._settings.proof is not None and agenda.proof is not None:  # now, while memory is free
            rows = self._settings.rows(world)
            rows = replace(rows, serves_parameters=False) if rows is not None else None
            self._settings.proof.prove(agenda.proof, self._job, process.data, device, world, rows)
        return agenda.resolved

    def _agenda(self, plan: Plan, process: JobProcess, deferred: DeferredModel) -> RunAgenda:
        """Complete the plan, and say what must be proved of it. The files of the data are compared with their index."""
        job, proof = self._job, self._settings.proof
        process.data.reader.verify()
        for each in process.loaders.of_evaluations:
            each.reader.verify()
        if self._settings.out is not None:
            process.compare_evaluation()
        if self._settings.manual:
            resolved = ResolvedPlan(plan)
        else:
            resolved = PlanCompleter(job, process.data, deferred).resolve(plan)
        if proof is None or (plan.mesh.size == 1 and plan.rounds == 1 and plan.recompute == "none"):
            return RunAgenda(resolved)
        return RunAgenda(resolved, proof.agenda(job, process.data, deferred, resolved, process.fingerprint))

    def _assemble(
        self,
        resolved: ResolvedPlan,
        mesh: ProcessMesh,
        device: Device,
        process: JobProcess,
        deferred: DeferredModel,
        checkpoints: Checkpoints | None,
        straggler: StragglerDetector,
        world: World,
    ) -> Assembly | ManualAssembly:
        settings = self._settings
        flags = StepFlags(stop=settings.stop)
        if checkpoints is not None:
            flags = StepFlags(
                stop=settings.stop,
                save=checkpoints.overdue,
                snapshot=lambda: checkpoints.snapshot_due(settings.regroup()),
                snapshot_blocked=checkpoints.snapshot_blocked,
                regroup=settings.regroup,
                waited=straggler.waited,
            )
        if self._settings.manual:
            return assemble_manual(self._job, resolved.plan, mesh, device, process.data, deferred, flags)
        rows = settings.rows(world) if resolved.plan.is_served or self._job.async_workers else None
        return assemble(self._job, resolved, mesh, device, process.data, deferred, flags, process.trials, rows)

    def _start(
        self,
        process: JobProcess,
        assembly: Assembly | ManualAssembly,
        resumed: Resumed | None,
        best: BestTracker | None,
    ) -> int:
        """Continue where the checkpoint ends, if there is one; return the number of steps of the whole run."""
        if resumed is None:
            return process.data.steps
        step, position = resumed.state.step, resumed.state.position
        steps = self._job.total_steps(process.data.order.size, step, position)
        _restore(assembly, resumed, best, steps)
        refuse_change_without_effect(resumed.changes, best, step, steps)
        process.loaders.training.start(step, position, steps)
        return steps


def _load_weights(path: Path, part: BasePart, process: JobProcess, resumed: bool) -> str:
    """Load the initial weights; in a run that was resumed, those that its checkpoint does not have."""
    tensors = [tensor for tensor in part.state_dict_tensors if not resumed or tensor.name in part.unsaved]
    adapters = {tensor.name for tensor in tensors} - part.unsaved if part.unsaved else set()
    return load_weights(path, tensors, process.stored_names, may_be_missing=adapters)


def _try_metrics(assembly: Assembly | ManualAssembly, loaders: Loaders) -> None:
    """Try the metrics on a sample, so that a mistake in one shows before training, not after."""
    if isinstance(assembly, Assembly) and loaders.evaluation_sample is not None:
        sample = assembly.part.place(loaders.evaluation_sample)
        assembly.trainer.try_metrics(sample, assembly.part.infer(sample))


def _resume(
    checkpoints: Checkpoints | None,
    assembly: Assembly | ManualAssembly,
    rows: SavedRows,
    fresh: bool,
    on_progress: Callable[[int, int], None],
) -> Resumed | None:
    if checkpoints is None:
        return None
    if fresh:
        checkpoints.remove_all()
        return None
    return checkpoints.resume(lambda: saved_tensors(assembly.part), rows, on_progress)


def _changes_text(resumed: Resumed) -> str:
    changes = "; ".join(map(str, resumed.changes))
    return f"after step {resumed.state.step}: {changes}" if changes else ""


def _restore(assembly: Assembly | ManualAssembly, resumed: Resumed, best: BestTracker | None, steps: int) -> None:
    assembly.trainer.resume(resumed.state, steps)
    if assembly.tables is not None:
        assembly.tables.updates = resumed.state.updates
    for update in assembly.trainer.updates.values():
        update.load_state(resumed.optimizer_states)
    if isinstance(assembly.trainer, Trainer) and resumed.precision == "fp16":  # other precisions save no loss scale
        assembly.trainer.restore_loss_scale(LossScale(resumed.state.loss_scale, resumed.state.good_steps))
    if best is not None:
        best.restore(resumed.state.best)


def _loader_workers(job: Job, choice: tuple[int, int]) -> Workers:
    """Loader processes of a rank: what the job says, or else as many as it takes. Workers that are no ranks read their
    samples themselves."""
    fixed = 0 if job.async_workers else job.workers
    return Workers(*choice) if fixed is None else Workers.of(fixed)
