"""A job put together on this rank: blueprint → part, dataset → batches, both → trainer."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from onecurve.apply.blueprint import Blueprint, draw
from onecurve.apply.mesh import LiveMesh
from onecurve.apply.part import DataPart
from onecurve.apply.precision import kept_dtype
from onecurve.apply.replicate import Trial
from onecurve.data.loader import Batch, Reader, training_batches
from onecurve.data.order import Order
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.plan import Plan
from onecurve.describe.seed import mix
from onecurve.device.device import Device
from onecurve.device.randomness import preserved, seed_all
from onecurve.job.batch import Micro
from onecurve.job.job import Dataset, Job
from onecurve.job.optimizer import Optimizer
from onecurve.measure.blocks import called_modules, find_blocks
from onecurve.train.objective import objective_of, refuse_false_mean
from onecurve.train.trainer import Trainer

_TRIAL_SAMPLES = 12


@dataclass(frozen=True)
class Data:
    """The job's dataset, opened, with its order."""

    reader: Reader
    order: Order
    steps: int

    def batches(self, plan: Plan, data_rank: int, workers: int) -> Iterator[Batch]:
        """A rank's batches, step by step."""
        return training_batches(self.reader, self.order, plan, data_rank, range(self.steps), 0, workers)

    def micro(self, begin: int, end: int) -> Micro:
        """The samples at these positions as one micro-batch, read here and now."""
        return self.reader.batch(self.order.samples(begin, end))


@dataclass(frozen=True)
class Assembly:
    """What of a job is on the device of a rank."""

    part: DataPart
    trainer: Trainer


def open_data(job: Job) -> Data:
    dataset = open_dataset(job.data, "data")
    order = Order([len(dataset)], job.seed)
    return Data(Reader(dataset, job.seed, job.collate), order, job.total_steps(order.size))


def open_dataset(build: object, name: str) -> Dataset:
    """Call the user's function; what it returns must have a length and be indexable."""
    assert callable(build)
    try:
        dataset = build()
    except OnecurveError:
        raise
    except Exception as error:
        raise UserCodeError(f"Job: {name}() raised {type(error).__name__}: {error}") from error
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise OnecurveError(
            f"Job: {name}() returned {type(dataset).__name__}; a map-style dataset is needed, with __len__ and "
            "__getitem__ (iterable datasets have no order that could be kept)"
        )
    return dataset  # type: ignore[no-any-return]


def optimizer_tensors(job: Job) -> int:
    """Tensors of optimizer state per parameter, as far as it is known before the first step."""
    return min(each.state_tensors if isinstance(each, Optimizer) else 0 for each in job.optimizers.values())


def assemble(
    job: Job, plan: Plan, mesh: LiveMesh, device: Device, data: Data, blueprint: Blueprint | None = None
) -> Assembly:
    """Build this rank's part and trainer, and refuse a loss that cannot be split."""
    blueprint = blueprint or draw(job.model, job.seed)
    if isinstance(job.loss, nn.Module):
        job.loss.to(device.torch_device, kept_dtype(plan.precision))
    part = DataPart(
        blueprint, plan, mesh, device, _blocks(job, plan, data, blueprint), job.batch_norm, _trial(job, data, device)
    )
    trainer = Trainer(job, part, data.steps, mesh.data_rank, plan)
    size = min(job.global_batch, _TRIAL_SAMPLES)

    def read(begin: int, end: int) -> Micro:
        return part.place(data.micro(begin, end))

    first = read(0, size)
    refuse_false_mean(job.loss, part.infer, read, first, trainer.try_measures(first))
    return Assembly(part, trainer)


def _blocks(job: Job, plan: Plan, data: Data, blueprint: Blueprint) -> list[str]:
    """The blocks to wrap, if the plan wraps any; a second, spent blueprint tells which are called."""
    if plan.mesh.shard == 1 and plan.recompute == "none" and not plan.compile:
        return []
    spent = draw(job.model, job.seed)
    micro = data.micro(0, 2)
    return find_blocks(blueprint.module, called_modules(spent.module, lambda _: spent.forward(micro)))


def _trial(job: Job, data: Data, device: Device) -> Trial:
    def trial(module: nn.Module, dtype: torch.dtype, number: int) -> Tensor:
        micro = data.micro(2 * number, 2 * number + 2).to(device.torch_device, dtype)
        with preserved():
            seed_all(mix(job.seed, number))
            return objective_of(job.loss)(micro.forward(module), micro).sum

    return trial
