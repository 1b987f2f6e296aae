"""A job's model on fake tensors, to be traced: shapes, calls and operations, but no values and no memory."""

import logging
from collections.abc import Iterable
from dataclasses import fields
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from onecurve.data.training_data import TrainingData
from onecurve.describe.changed_buffers import ChangedBuffers
from onecurve.describe.dataflow import Dataflow
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Precision
from onecurve.device.device import local_cpu
from onecurve.device.precision import autocast
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Job
from onecurve.job.objective import objective_of
from onecurve.job.whole_batch import TWO_PASSES, WholeBatchLoss
from onecurve.measure.blocks import count_calls, entered_from_outside, find_blocks, find_called_once
from onecurve.measure.changed_buffers import find_changed_buffers
from onecurve.measure.dataflow import trace_dataflow
from onecurve.measure.module_calls import ModuleKind, names_in_siblings, run_one_of_each_kind
from onecurve.model.data_dependent import DataDependentFallback
from onecurve.model.deferred import DeferredModel, TraceableModule, defer_init

_log = logging.getLogger(__name__)

TRACE_SAMPLES = 2
"""Samples of a micro-batch where their number does not matter."""


class TracedModel:
    """One copy of the model that every trace of the planner shares. Refuses a model that could not be recorded."""

    def __init__(self, job: Job, data: TrainingData, deferred: DeferredModel | None = None) -> None:
        """`deferred` is the recorded model, if the caller has it already and needs it later; it is copied."""
        self.job, self.data = job, data
        self._traceable: TraceableModule = (
            deferred.trace_copy() if deferred is not None else defer_init(job.model, job.seed).to_traceable()
        )
        self._micro_batches: dict[int, MicroBatch] = {}
        self._kinds: dict[tuple[int, Precision], list[ModuleKind]] = {}

    @property
    def model(self) -> nn.Module:
        return self._traceable.module

    @property
    def mode(self) -> FakeTensorMode:
        return self._traceable.mode

    @cached_property
    def blocks(self) -> list[str]:
        """Names of the blocks that a forward calls."""
        likely = find_blocks(self.model)
        called = self._called_modules(likely)
        if called is None:
            return likely
        entered = entered_from_outside(self.model, likely, self.forward)
        if called.issuperset(likely) and not entered:
            return likely
        return find_blocks(self.model, (self._called_modules([]) or set()) - entered)

    def called_blocks(self) -> set[str] | None:
        """Names of the blocks that a forward calls now; None if it fails."""
        likely = find_blocks(self.model)
        called = self._called_modules(likely)
        return called.intersection(likely) if called is not None else None

    @property
    def block_modules(self) -> dict[str, nn.Module]:
        """The blocks by name."""
        return {name: self.model.get_submodule(name) for name in self.blocks}

    @cached_property
    def dataflow(self) -> Dataflow:
        """The tensors that flow between the blocks. Refuses a model whose blocks are not called exactly once."""
        if not self.blocks:
            raise OnecurveError(
                "model: no repeated blocks were found; a plan with pipeline2 that you give cuts it between smaller "
                "modules"
            )
        with run_one_of_each_kind(self.block_modules):
            return trace_dataflow(self.model, self.blocks, self.mode, self.forward)

    @cached_property
    def changed_buffers(self) -> ChangedBuffers:
        """What a forward in training mode changes, besides the running statistics of batch norm."""
        micro = self.micro()
        with run_one_of_each_kind(self.block_modules) as kinds, self.mode, DataDependentFallback():
            changed = find_changed_buffers(self.model, micro.inputs, lambda: micro.forward(self.model))
        names = {field.name: getattr(changed, field.name) for field in fields(changed)}
        tuples = {name: value for name, value in names.items() if isinstance(value, tuple)}
        return ChangedBuffers(**{**names, **{name: names_in_siblings(value, kinds) for name, value in tuples.items()}})

    @cached_property
    def fine_dataflow(self) -> Dataflow:
        """The tensors that flow between the smallest modules that are called exactly once."""
        calls = dict(count_calls(self.model, lambda _: self.forward()) or {})
        names = find_called_once(self.model, calls)
        while entered := entered_from_outside(self.model, names, self.forward):
            calls = {name: count for name, count in calls.items() if name not in entered}  # cut inside them instead
            names = find_called_once(self.model, calls)
        if len(names) < 2:
            raise OnecurveError(
                "model: it has fewer than two modules with parameters that a forward calls exactly once, so it cannot "
                "be split into pipeline stages; use another axis"
            )
        return trace_dataflow(self.model, names, self.mode, self.forward)

    def dataflow_for(self, stages: int) -> Dataflow:
        """Return the data flow between blocks, or between smaller modules if the blocks do not make so many stages."""
        if self.job.has_local_loss:
            raise OnecurveError(
                "loss 'hugging_face_local_auxiliary': the auxiliary loss needs the router logits of all layers, and "
                "the last pipeline stage has only those of its own; use another axis"
            )
        if isinstance(self.job.loss, WholeBatchLoss):
            raise OnecurveError(f"loss: {TWO_PASSES}; use another axis")
        try:
            if stages <= len(self.blocks):
                return self.dataflow
        except OnecurveError as error:
            _log.info("pipeline: cut between smaller modules: %s", error)
        return self.fine_dataflow

    def micro(self, samples: int = TRACE_SAMPLES) -> MicroBatch:
        """Return the first samples of the data as a fake micro-batch."""
        samples = min(samples, self.job.global_batch)
        if samples not in self._micro_batches:
            with _disable_current_modes():  # the user's dataset may read values
                real = self.data.trial_micro(0, samples)
            self._micro_batches[samples] = self._traceable.fake_batch(real)
        return self._micro_batches[samples]

    def forward(self) -> object:
        """Run the model on a small fake micro-batch."""
        return self._traceable.forward(self.micro())

    def output(self, micro: MicroBatch) -> Any:
        """Run the model on a fake micro-batch."""
        with DataDependentFallback():
            return micro.forward(self.model)

    def loss(self, micro: MicroBatch) -> Tensor:
        """Return the loss sum of a fake micro-batch."""
        return objective_of(self.job.loss)(micro.forward(self.model), micro).sum

    def kinds(self, samples: int, precision: Precision = "fp32") -> list[ModuleKind]:
        """Return the groups of identical blocks, each with the call that a forward of `samples` samples makes."""
        key = samples, precision
        if key not in self._kinds:
            micro = self.micro(samples)
            with (
                torch.no_grad(),
                autocast(precision, local_cpu()),
                run_one_of_each_kind(self.block_modules) as kinds,
                self.mode,
                DataDependentFallback(),
            ):
                micro.forward(self.model)
            self._kinds[key] = [*kinds.values()]
        return self._kinds[key]

    def _called_modules(self, repeated: Iterable[str]) -> set[str] | None:
        """Names of the modules that a forward calls; of modules in `repeated` that are identical only one runs."""
        with run_one_of_each_kind({name: self.model.get_submodule(name) for name in repeated}):
            calls = count_calls(self.model, lambda _: self.forward())
        return set(calls) if calls is not None else None
