"""A job's model on fake tensors, to be looked at."""

from functools import cached_property

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from onecurve.data.training_data import TrainingData
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Precision
from onecurve.device.device import local_cpu
from onecurve.device.precision import autocast
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Job
from onecurve.job.objective import objective_of
from onecurve.measure.blocks import called_modules, find_blocks
from onecurve.measure.module_calls import ModuleKind, run_one_of_each_kind
from onecurve.model.deferred import DeferredModel, defer_init

FEW = 2
"""Samples, where any number would do."""


class TracedModel:
    """The model recorded, which a constructor may not allow. Drawn once, looked at as often as one likes: nothing is
    computed, nothing held."""

    def __init__(self, job: Job, data: TrainingData) -> None:
        self.job, self.data = job, data
        self.deferred = defer_init(job.model, job.seed)
        if self.deferred.recorder is None:
            raise OnecurveError(
                f"model: {self.deferred.warning}; to be split it needs a constructor that can be recorded"
            )
        self.mode: FakeTensorMode = self.deferred.recorder.mode
        self.mode.allow_non_fake_inputs = True
        self._micro_batches: dict[int, MicroBatch] = {}
        self._kinds: dict[tuple[int, Precision], list[ModuleKind]] = {}

    @property
    def model(self) -> nn.Module:
        return self.deferred.module

    @cached_property
    def blocks(self) -> list[str]:
        """The names of the blocks that a forward calls."""
        return blocks_of(self.deferred, self.data.micro(0, self._few))

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The blocks by name."""
        return {name: self.model.get_submodule(name) for name in self.blocks}

    def micro(self, samples: int = FEW) -> MicroBatch:
        """The first samples, fake."""
        samples = min(samples, self.job.global_batch)
        if samples not in self._micro_batches:
            self._micro_batches[samples] = self.deferred.fake_batch(self.data.micro(0, samples))
        return self._micro_batches[samples]

    def kinds(self, samples: int, precision: Precision = "fp32") -> list[ModuleKind]:
        """Blocks that are alike, and how a forward of so many samples calls them."""
        key = samples, precision
        if key not in self._kinds:
            micro = self.micro(samples)
            with (
                torch.no_grad(),
                autocast(precision, local_cpu()),
                run_one_of_each_kind(self.modules) as kinds,
                self.mode,
            ):
                micro.forward(self.model)
            self._kinds[key] = [*kinds.values()]
        return self._kinds[key]

    def loss(self, micro: MicroBatch) -> Tensor:
        return objective_of(self.job.loss)(micro.forward(self.model), micro).sum

    @property
    def _few(self) -> int:
        return min(FEW, self.job.global_batch)


def blocks_of(deferred: DeferredModel, micro: MicroBatch) -> list[str]:
    """The names of the blocks that a forward calls. The blueprint is spent."""
    model = deferred.module
    likely = find_blocks(model)
    with run_one_of_each_kind({name: model.get_submodule(name) for name in likely}):
        called = called_modules(model, lambda _: deferred.forward(micro))
    if called is None or called.issuperset(likely):
        return likely
    return find_blocks(model, called_modules(model, lambda _: deferred.forward(micro)))
