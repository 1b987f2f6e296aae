"""A job put together on this rank: blueprint → part, part → trainer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from onecurve.apply.process_mesh import ProcessMesh
from onecurve.apply.replicate import UnusedParameterTrial
from onecurve.apply.single_stage import SingleStagePart
from onecurve.data.training_data import TrainingData
from onecurve.describe.plan import Plan
from onecurve.describe.seed import mix
from onecurve.device.device import Device
from onecurve.device.precision import master_dtype
from onecurve.device.rng import preserve_rng_state, seed_all
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Job
from onecurve.job.objective import objective_of, refuse_non_mean_scalar
from onecurve.job.optimizer import Optimizer
from onecurve.model.deferred import DeferredModel, defer_init
from onecurve.planner.pipeline_stages import dataflow_of, refuse_other_blocks
from onecurve.planner.traced_model import TracedModel, blocks_of
from onecurve.train.trainer import Trainer

if TYPE_CHECKING:
    from onecurve.apply.pipeline import PipelinePart

_TRIAL_SAMPLES = 12


@dataclass(frozen=True)
class Assembly:
    """What of a job is on the device of a rank."""

    part: "SingleStagePart | PipelinePart"
    trainer: Trainer


def refuse_unmatched_groups(job: Job, deferred: DeferredModel) -> None:
    """Patterns of the optimizers' groups are held against the whole model: a rank may hold less."""
    names = [name for name, parameter in deferred.module.named_parameters() if parameter.requires_grad]
    for child, each in job.optimizers.items():
        if isinstance(each, Optimizer):
            each.refuse_unmatched([name for name in names if not child or name.startswith(child + ".")])


def aliases(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer → the one that stands for all of a tie."""
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in every}


def assemble(
    job: Job, plan: Plan, mesh: ProcessMesh, device: Device, data: TrainingData, deferred: DeferredModel | None = None
) -> Assembly:
    """Build this rank's part and trainer, and refuse a loss that cannot be split."""
    deferred = deferred or defer_init(job.model, job.seed)
    if isinstance(job.loss, nn.Module):
        job.loss.to(device.torch_device, master_dtype(plan.precision))
    part = _part(job, plan, mesh, device, data, deferred)
    trainer = Trainer(job, part, data.steps, mesh.data_rank, plan)
    size = min(job.global_batch, _TRIAL_SAMPLES)

    def read(begin: int, end: int) -> MicroBatch:
        return part.place(data.micro(begin, end))

    first = read(0, size)
    refuse_non_mean_scalar(job.loss, part.infer, read, first, trainer.try_measures(first))
    return Assembly(part, trainer)


def _part(
    job: Job, plan: Plan, mesh: ProcessMesh, device: Device, data: TrainingData, deferred: DeferredModel
) -> "SingleStagePart | PipelinePart":
    if plan.mesh.pipeline > 1:
        from onecurve.apply.pipeline import PipelinePart  # torch's pipelining takes a second to import

        dataflow = dataflow_of(TracedModel(job, data))
        refuse_other_blocks(plan, dataflow)
        return PipelinePart(deferred, plan, mesh, device, dataflow, defer_init(job.model, job.seed), job.batch_norm)
    wraps = plan.mesh.shard > 1 or plan.recompute != "none" or plan.compile
    blocks = blocks_of(defer_init(job.model, job.seed), data.micro(0, 2)) if wraps else []
    return SingleStagePart(deferred, plan, mesh, device, blocks, job.batch_norm, _trial(job, data, device))


def _trial(job: Job, data: TrainingData, device: Device) -> UnusedParameterTrial:
    def trial(module: nn.Module, dtype: torch.dtype, number: int) -> Tensor:
        micro = data.micro(2 * number, 2 * number + 2).to(device.torch_device, dtype)
        with preserve_rng_state():
            seed_all(mix(job.seed, number))
            return objective_of(job.loss)(micro.forward(module), micro).sum

    return trial
