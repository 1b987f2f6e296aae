"""Builds this rank's part of the model and its trainer, and refuses a loss or a metric that cannot be split."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from onecurve.apply.manual_backward import ManualBackwardPart
from onecurve.apply.process_mesh import ProcessMesh
from onecurve.apply.replicate import UnusedParameterTest, leaves_parameters_unused
from onecurve.apply.single_stage import SingleStagePart
from onecurve.data.order import share_bounds
from onecurve.data.training_data import TrainingData
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.scalar_form import ScalarForm
from onecurve.describe.seed import mix
from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.device.device import Device
from onecurve.device.precision import LOW_PRECISION, autocast, master_dtype
from onecurve.device.rng import preserve_rng_state, python_and_numpy_state, seed_all
from onecurve.job.batch import MicroBatch
from onecurve.job.embedding import tables_of
from onecurve.job.evaluation_metrics import metrics_of
from onecurve.job.job import Job
from onecurve.job.loss_parameters import refuse_other_parameters
from onecurve.job.loss_trial import TRIAL_SAMPLES, LossTrial
from onecurve.job.metric_trial import refuse_unsplittable_metrics
from onecurve.job.objective import objective_of
from onecurve.job.optimizer import Optimizer
from onecurve.job.whole_batch import splittable
from onecurve.measure.blocks import find_blocks
from onecurve.model.deferred import DeferredModel
from onecurve.model.fake_mode import refuse_fake_tensors
from onecurve.model.unchanged import functions_kept, state_kept, unchanged
from onecurve.params.tables import Tables
from onecurve.runtime.row_tables import RowAccess, build_tables
from onecurve.train.branch_watch import BranchWatch
from onecurve.train.manual_trainer import ManualTrainer
from onecurve.train.step_flags import StepFlags
from onecurve.train.trainer import Trainer
from onecurve.train.update import OptimizerUpdate

if TYPE_CHECKING:
    from onecurve.apply.pipeline import PipelinePart


@dataclass
class TrialResults:
    """What trial runs have shown about a job. It holds for every plan, so a process tries only once."""

    loss_note: str | None = None
    """What could not be tested about the loss, for the user; None before the trial."""
    loss_form: ScalarForm | None = None
    """What a scalar of the loss means; None before the trial, and for other forms of losses."""
    leaves_unused: bool | None = None
    """True if some steps leave a parameter without a gradient; None before the trial."""


@dataclass(frozen=True)
class Assembly:
    """A rank's part of the model and the trainer that steps it."""

    part: "SingleStagePart | PipelinePart"
    trainer: Trainer
    note: str = ""
    """What could not be tested about the loss, for the user; empty if everything was tested."""
    tables: Tables | None = None
    """The model's embedding tables; None if it has none."""


@dataclass(frozen=True)
class ManualAssembly:
    """The same for a loop in which the user calls backward."""

    part: ManualBackwardPart
    trainer: ManualTrainer
    tables: None = None


def assemble(
    job: Job,
    resolved: ResolvedPlan,
    mesh: ProcessMesh,
    device: Device,
    data: TrainingData,
    deferred: DeferredModel,
    flags: StepFlags | None = None,
    trials: TrialResults | None = None,
    rows: RowAccess | None = None,
    update: type[OptimizerUpdate] = OptimizerUpdate,
) -> Assembly:
    """Build the part and the trainer. Consumes the deferred model. `trials`: what earlier assemblies have found.
    `rows`: how row servers are reached. `update`: what becomes of the gradients."""
    plan = resolved.plan
    trials = trials or TrialResults()
    if isinstance(job.loss, nn.Module):
        job.loss.to(device.torch_device, master_dtype(plan.precision))
    tables = build_tables(deferred.module, plan, mesh, job, rows)
    part = _part(job, resolved, mesh, device, data, deferred, trials, tables)
    trainer = Trainer(job, part, data.steps, mesh.data_rank, plan, flags, update)
    if trials.loss_note is None:
        trials.loss_note = _try_loss(job, plan, part, trainer, data)
        trials.loss_form = trainer.objective.form
    trainer.objective.form = trials.loss_form
    if resolved.changed_buffers.reads_values and plan.mesh.data * plan.rounds > 1 and not data.is_stream:
        trainer.branches = _branch_watch(job, plan, part, trainer, data, mesh.data_rank)
    form = trials.loss_form
    if job.audit is not None and form is not None and not (form.counted or form.per_sample):
        trainer.audit_loss = _loss_audit(job, part, form, _loss_trial(job, plan, part, trainer, data))
    return Assembly(part, trainer, trials.loss_note, tables)


def _loss_audit(
    job: Job, part: "SingleStagePart | PipelinePart", form: ScalarForm, trial: LossTrial
) -> Callable[[int, MicroBatch], None]:
    """Return what an audited step does with a scalar loss that says nothing about its denominator."""

    def audit(step: int, micro: MicroBatch) -> None:
        with unchanged(part.module, job.loss, *job.metrics.values()):
            trial.refuse_uneven_step(splittable(job.loss), form, part.place(micro), step)
        part.drop_gathered()  # the update comes next

    return audit


def _try_loss(
    job: Job, plan: Plan, part: "SingleStagePart | PipelinePart", trainer: Trainer, data: TrainingData
) -> str:
    """Refuse a loss or metric that cannot be split; return what could not be tested. All ranks of the model call it."""
    trial = _loss_trial(job, plan, part, trainer, data)
    with unchanged(part.module, job.loss, *job.metrics.values()), refuse_fake_tensors():
        first = trial.read(0, min(job.global_batch, TRIAL_SAMPLES), 1)
        with trial.kept_state():
            output = part.infer(first)
            if part.reports_metrics:
                refuse_other_parameters(job.loss, output, first, part.module.parameters())
            trainer.try_metrics(first, output)
        note = trial.refuse_unsplittable(splittable(job.loss), first)
        of_metrics = refuse_unsplittable_metrics(trial, metrics_of(job.metrics), first)
        return " ".join(filter(None, [note, of_metrics]))


def _loss_trial(
    job: Job, plan: Plan, part: "SingleStagePart | PipelinePart", trainer: Trainer, data: TrainingData
) -> LossTrial:
    def read(begin: int, end: int, copies: int) -> MicroBatch:
        return part.place(data.trial_micro(begin, end, copies))

    def on_any_rank(found: bool) -> bool:
        flag = torch.full((1,), float(found), device=part.device.torch_device)
        return bool(all_reduce_sum(part.group, flag).item())

    return LossTrial(
        infer=part.infer,
        read=read,
        low_precision=LOW_PRECISION.get(plan.precision),
        judges=part.reports_metrics,
        on_any_rank=on_any_rank,
        on_form=trainer.objective.set_form,
        kept_state=partial(functions_kept, job.loss, *job.metrics.values(), model=part.module),
    )


def _branch_watch(
    job: Job,
    plan: Plan,
    part: "SingleStagePart | PipelinePart",
    trainer: Trainer,
    data: TrainingData,
    data_rank: int,
) -> BranchWatch:
    """Watch the branches of a model that reads values; without this, a rare one would train something else."""
    trial = _loss_trial(job, plan, part, trainer, data)

    def test(micros: Sequence[MicroBatch], decided: str) -> None:
        with unchanged(part.module, job.loss, *job.metrics.values()):
            trial.refuse_branch(splittable(job.loss), [*micros], decided)
        part.drop_gathered()  # the update comes next

    return BranchWatch(
        plan=plan,
        share=partial(share_bounds, plan, data_rank),
        group=part.group,
        device=part.device.torch_device,
        read=trial.read,
        test=test,
    )


def assemble_manual(
    job: Job,
    plan: Plan,
    mesh: ProcessMesh,
    device: Device,
    data: TrainingData,
    deferred: DeferredModel,
    flags: StepFlags,
) -> ManualAssembly:
    """Build the part and the trainer for a loop that calls backward itself. Consumes the deferred model."""
    if tables := tables_of(deferred.module):
        raise OnecurveError(f"model: embedding tables ({', '.join(tables)}) cannot be used with backward='mine'")
    children = {name: find_blocks(_child(deferred.module, name)) for name in job.optimizers}
    part = ManualBackwardPart(deferred, plan, mesh, device, children, job.batch_norm)
    return ManualAssembly(part, ManualTrainer(job, part, data.steps, plan, flags))


def refuse_unmatched_groups(job: Job, deferred: DeferredModel) -> None:
    """Check the optimizers' name patterns against the full model, because a rank may hold only a part of it."""
    names = [name for name, parameter in deferred.module.named_parameters() if parameter.requires_grad]
    for child, optimizer in job.optimizers.items():
        if isinstance(optimizer, Optimizer):
            optimizer.refuse_unmatched([name for name in names if not child or name.startswith(child + ".")])


def refuse_sparse_gradients(deferred: DeferredModel) -> None:
    """Refuse embeddings with sparse gradients, which neither the optimizers nor the gradient reduction support."""
    for name, module in deferred.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise OnecurveError(
                f"model: {type(module).__name__} {name!r} has sparse gradients, which are not supported; build it with "
                "sparse=False"
            )


def first_names(model: nn.Module) -> Mapping[str, str]:
    """Return every name of a parameter or buffer → the first name of the same tensor, which stands for all ties."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in named}


def _part(
    job: Job,
    resolved: ResolvedPlan,
    mesh: ProcessMesh,
    device: Device,
    data: TrainingData,
    deferred: DeferredModel,
    trials: TrialResults,
    tables: Tables | None,
) -> "SingleStagePart | PipelinePart":
    if resolved.dataflow is not None:
        from onecurve.apply.pipeline import PipelinePart  # torch's pipelining takes a second to import

        traceable = deferred.trace_copy()
        return PipelinePart(deferred, resolved, mesh, device, traceable, job.batch_norm)
    leaves_unused = _unused_parameter_test(job, resolved.plan, data, device, trials)
    return SingleStagePart(deferred, resolved, mesh, device, job.batch_norm, leaves_unused, tables)


def _unused_parameter_test(
    job: Job, plan: Plan, data: TrainingData, device: Device, trials: TrialResults
) -> UnusedParameterTest:
    def trial(module: nn.Module, dtype: torch.dtype, number: int) -> tuple[Tensor, bool]:
        micro = data.trial_micro(2 * number, 2 * number + 2).to(device.torch_device, dtype)
        with preserve_rng_state():
            seed_all(mix(job.seed, number))
            before = repr(python_and_numpy_state())
            with autocast(plan.precision, device):
                loss = objective_of(job.loss)(micro.forward(module), micro).sum
            return loss, repr(python_and_numpy_state()) != before

    def test(module: nn.Module, dtype: torch.dtype, group: Group) -> bool:
        if trials.leaves_unused is None:
            with state_kept(module, job.loss):
                trials.leaves_unused = leaves_parameters_unused(module, trial, dtype, group)
        return trials.leaves_unused

    return test


def _child(module: nn.Module, name: str) -> nn.Module:
    try:
        return module.get_submodule(name)
    except AttributeError:
        children = ", ".join(child for child, _ in module.named_children()) or "none"
        raise OnecurveError(f"optimizer: the model has no child {name!r} (it has: {children})") from None
