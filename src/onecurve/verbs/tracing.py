"""A job's model on fake tensors, to be looked at."""

from functools import cached_property

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from onecurve.apply.blueprint import Blueprint, draw
from onecurve.apply.precision import computing
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Precision
from onecurve.device.device import local_cpu
from onecurve.job.batch import Micro
from onecurve.job.job import Job
from onecurve.measure.blocks import called_modules, find_blocks
from onecurve.measure.call import Kind, alike_once
from onecurve.train.objective import objective_of
from onecurve.verbs.data import Data

FEW = 2
"""Samples, where any number would do."""


class Traceable:
    """The model recorded, which a constructor may not allow. Drawn once, looked at as often as one likes: nothing is
    computed, nothing held."""

    def __init__(self, job: Job, data: Data) -> None:
        self.job, self.data = job, data
        self.blueprint = draw(job.model, job.seed)
        if self.blueprint.tape is None:
            raise OnecurveError(
                f"model: {self.blueprint.warning}; to be split it needs a constructor that can be recorded"
            )
        self.mode: FakeTensorMode = self.blueprint.tape.mode
        self.mode.allow_non_fake_inputs = True
        self._micros: dict[int, Micro] = {}
        self._kinds: dict[tuple[int, Precision], list[Kind]] = {}

    @property
    def model(self) -> nn.Module:
        return self.blueprint.module

    @cached_property
    def blocks(self) -> list[str]:
        """The names of the blocks that a forward calls."""
        return blocks_of(self.blueprint, self.data.micro(0, self._few))

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The blocks by name."""
        return {name: self.model.get_submodule(name) for name in self.blocks}

    def micro(self, samples: int = FEW) -> Micro:
        """The first samples, fake."""
        samples = min(samples, self.job.global_batch)
        if samples not in self._micros:
            self._micros[samples] = self.blueprint.faked(self.data.micro(0, samples))
        return self._micros[samples]

    def kinds(self, samples: int, precision: Precision = "fp32") -> list[Kind]:
        """Blocks that are alike, and how a forward of so many samples calls them."""
        key = samples, precision
        if key not in self._kinds:
            micro = self.micro(samples)
            with torch.no_grad(), computing(precision, local_cpu()), alike_once(self.modules) as kinds, self.mode:
                micro.forward(self.model)
            self._kinds[key] = [*kinds.values()]
        return self._kinds[key]

    def loss(self, micro: Micro) -> Tensor:
        return objective_of(self.job.loss)(micro.forward(self.model), micro).sum

    @property
    def _few(self) -> int:
        return min(FEW, self.job.global_batch)


def blocks_of(blueprint: Blueprint, micro: Micro) -> list[str]:
    """The names of the blocks that a forward calls. The blueprint is spent."""
    model = blueprint.module
    likely = find_blocks(model)
    with alike_once({name: model.get_submodule(name) for name in likely}):
        called = called_modules(model, lambda _: blueprint.forward(micro))
    if called is None or called.issuperset(likely):
        return likely
    return find_blocks(model, called_modules(model, lambda _: blueprint.forward(micro)))
