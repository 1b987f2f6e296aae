"""A job put together on this rank: blueprint → part, part → trainer."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from onecurve.apply.blueprint import Blueprint, draw
from onecurve.apply.mesh import LiveMesh
from onecurve.apply.part import DataPart
from onecurve.apply.precision import kept_dtype
from onecurve.apply.replicate import Trial
from onecurve.describe.plan import Plan
from onecurve.describe.seed import mix
from onecurve.device.device import Device
from onecurve.device.randomness import preserved, seed_all
from onecurve.job.batch import Micro
from onecurve.job.job import Job
from onecurve.job.optimizer import Optimizer
from onecurve.train.objective import objective_of, refuse_false_mean
from onecurve.train.trainer import Trainer
from onecurve.verbs.data import Data
from onecurve.verbs.stages import flow_of, refuse_other_blocks
from onecurve.verbs.tracing import Traceable, blocks_of

if TYPE_CHECKING:
    from onecurve.apply.pipeline import PipelinePart

_TRIAL_SAMPLES = 12


@dataclass(frozen=True)
class Assembly:
    """What of a job is on the device of a rank."""

    part: "DataPart | PipelinePart"
    trainer: Trainer


def refuse_unmatched_groups(job: Job, blueprint: Blueprint) -> None:
    """Patterns of the optimizers' groups are held against the whole model: a rank may hold less."""
    names = [name for name, parameter in blueprint.module.named_parameters() if parameter.requires_grad]
    for child, each in job.optimizers.items():
        if isinstance(each, Optimizer):
            each.refuse_unmatched([name for name in names if not child or name.startswith(child + ".")])


def aliases(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer → the one that stands for all of a tie."""
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in every}


def assemble(
    job: Job, plan: Plan, mesh: LiveMesh, device: Device, data: Data, blueprint: Blueprint | None = None
) -> Assembly:
    """Build this rank's part and trainer, and refuse a loss that cannot be split."""
    blueprint = blueprint or draw(job.model, job.seed)
    if isinstance(job.loss, nn.Module):
        job.loss.to(device.torch_device, kept_dtype(plan.precision))
    part = _part(job, plan, mesh, device, data, blueprint)
    trainer = Trainer(job, part, data.steps, mesh.data_rank, plan)
    size = min(job.global_batch, _TRIAL_SAMPLES)

    def read(begin: int, end: int) -> Micro:
        return part.place(data.micro(begin, end))

    first = read(0, size)
    refuse_false_mean(job.loss, part.infer, read, first, trainer.try_measures(first))
    return Assembly(part, trainer)


def _part(
    job: Job, plan: Plan, mesh: LiveMesh, device: Device, data: Data, blueprint: Blueprint
) -> "DataPart | PipelinePart":
    if plan.mesh.pipeline > 1:
        from onecurve.apply.pipeline import PipelinePart  # torch's pipelining takes a second to import

        flow = flow_of(Traceable(job, data))
        refuse_other_blocks(plan, flow)
        return PipelinePart(blueprint, plan, mesh, device, flow, draw(job.model, job.seed), job.batch_norm)
    wraps = plan.mesh.shard > 1 or plan.recompute != "none" or plan.compile
    blocks = blocks_of(draw(job.model, job.seed), data.micro(0, 2)) if wraps else []
    return DataPart(blueprint, plan, mesh, device, blocks, job.batch_norm, _trial(job, data, device))


def _trial(job: Job, data: Data, device: Device) -> Trial:
    def trial(module: nn.Module, dtype: torch.dtype, number: int) -> Tensor:
        micro = data.micro(2 * number, 2 * number + 2).to(device.torch_device, dtype)
        with preserved():
            seed_all(mix(job.seed, number))
            return objective_of(job.loss)(micro.forward(module), micro).sum

    return trial
