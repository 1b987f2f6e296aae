"""The axis `pipeline`: what one rank holds and runs of a model whose blocks are spread over stages.

The rounds of a step are the pipeline's micro-batches, and torch's schedules say in which order a stage takes them. What
several stages hold (tied weights, a parameter of the model itself) has its gradients added over them, and so stays one.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils import _pytree as pytree

from onecurve.apply.auto_backward import AutoBackwardPart
from onecurve.apply.gradient_reducer import GradientReducer
from onecurve.apply.mixed_precision import shard_policy
from onecurve.apply.partial_forward import PartialForward
from onecurve.apply.pipeline_stage import DynamicShapeStage, StageModule, make_schedule
from onecurve.apply.process_mesh import ProcessMesh
from onecurve.apply.shape_inference import ShapeInference
from onecurve.apply.stage_ownership import StageOwnership
from onecurve.apply.tensor import full_tensor
from onecurve.describe.dataflow import Dataflow
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.seed import mix
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor, absent_tensor
from onecurve.device.precision import autocast
from onecurve.job.batch import MicroBatch, Objective
from onecurve.job.job import BatchNorm
from onecurve.model.deferred import DeferredModel


class PipelinePart(AutoBackwardPart):
    """A rank of `pipeline`, with any of the other axes."""

    def __init__(
        self,
        deferred: DeferredModel,
        plan: Plan,
        mesh: ProcessMesh,
        device: Device,
        dataflow: Dataflow,
        shapes: DeferredModel,
        batch_norm: BatchNorm,
    ) -> None:
        """`sketch`: a second blueprint, to be spent."""
        super().__init__(deferred, plan, mesh, device, batch_norm)
        self._ownership = StageOwnership(self.module, dataflow, plan.stages, plan.mesh.pipeline)
        stages = range(mesh.pipeline_rank, plan.stage_count, plan.mesh.pipeline)
        self._spans = {number: self._ownership.spans[number] for number in stages}
        dtype = shard_policy(plan).param_dtype if mesh.shard_mesh else None
        seen = ShapeInference(
            shapes,
            [*dataflow.blocks, *dataflow.units],
            device.torch_device,
            dtype or self._dtype,
            lambda: autocast(plan.precision, device),
        )
        self._partial = PartialForward(self.module, dataflow, list(self._spans.values()), seen, device.torch_device)
        # The order matters: what changes forward comes first, the engines that hook into it last.
        self._change_forward([name for name in self._partial.own if name in dataflow.blocks])
        self._root = _Root(self.module)
        alone = [name for name in _alone(self.module, self._partial.own) if name not in dataflow.opened]
        self._split(self._root, [f"model.{name}" for name in alone])
        self._partial.listen()
        self._finish_construction()
        self._refuse_idle()
        self._reducers = list(self._shared_parameter_reducers())
        self._stages = [self._stage(number) for number in self._spans]
        self._schedule = make_schedule(plan.schedule, self._stages, plan.rounds)
        self._rounds: Sequence[MicroBatch] = ()
        self._sent: list[dist.Work] = []

    def run_rounds(
        self, rounds: Sequence[MicroBatch], objective: Objective, scale: float, seeds: Sequence[int]
    ) -> Tensor:
        self._set_mode(training=True)
        self._statistics.keep()
        self._await_sent()
        self._rounds, self._seeds = [self.place(each) for each in rounds], seeds
        self._objective, self._scale = objective, scale
        self._totals = torch.zeros(2, dtype=torch.float64, device=self.device.torch_device)
        self._reduce_in_backward(self._plan.reduce == "round")
        for stage in self._stages:
            stage.has_backward = True
            stage.clear_runtime_states()
        count = len(rounds)
        with self._running():
            try:
                self._schedule._step_microbatches(
                    [()] * count, [{"number": n} for n in range(count)], [None] * count, return_outputs=False
                )
            except RuntimeError as error:
                _raise_own(error)
                raise
        self._reduce_rest()
        self._take_gradients()
        for reduction in self._reducers:
            reduction()
        return self._totals if self.reports else torch.zeros_like(self._totals)

    def infer(self, micro: MicroBatch) -> Any:
        """Stage by stage; a rank whose stages are done goes on to the next micro-batch, and gives zeros."""
        self._set_mode(training=False)
        group, device = self._mesh.pipeline_group, self.device.torch_device
        assert group is not None
        with torch.no_grad(), self._running(), autocast(self._plan.precision, self.device):
            for number in self._spans:
                received = [torch.empty(x.shape, dtype=x.dtype, device=device) for x in self._given(number, micro)]
                for buffer in received:
                    dist.recv(buffer, group=group, group_src=(number - 1) % group.size())
                output = self._root(self._forward, number, micro, None, *received)
                if number == self._plan.stage_count - 1:
                    return pytree.tree_map(full_tensor, output)
                self._await_sent()
                after = (number + 1) % group.size()
                self._sent = [dist.isend(each, group=group, group_dst=after) for each in output]  # type: ignore[misc]
        return self._partial.nothing(micro)

    @property
    def saved(self) -> list[LocalTensor]:
        """Every stage's, since every rank helps to gather them."""
        here = {local_tensor.name: local_tensor for local_tensor in self.state}
        return [
            here.get(name) or absent_tensor(name, shape, dtype, self.device.torch_device, self.group)
            for name, shape, dtype in self._ownership.tensors(self._dtype)
            if name in self._state_dict_names
        ]

    def _forward(self, number: int, micro: MicroBatch, seed: int | None, *received: Tensor) -> Any:
        """What the next stage needs, or the model's output."""
        given: Sequence[Tensor] = received
        if self._tensor is not None:
            whole = self._partial.crossing(self._spans[number].begin, micro)
            given = [self._tensor.received(part, x) for part, x in zip(received, whole, strict=True)]
        reseed = (lambda _: None) if seed is None else (lambda place: self.device.seed(mix(seed, place)))
        output = self._partial.run(self._spans[number], micro, given, reseed)
        if number == self._plan.stage_count - 1:
            return output
        sent = output if self._tensor is None else map(self._tensor.to_send, output)
        return tuple(each.contiguous() for each in sent)

    def _train(self, number: int, round_number: int, *received: Tensor) -> Any:
        """A stage's forward of one round: what the next one needs, or the scaled loss."""
        micro = self._rounds[round_number]
        with autocast(self._plan.precision, self.device):
            output = self._forward(number, micro, self._seeds[round_number], *received)
            if number < self._plan.stage_count - 1:
                return output
            weighted = self._objective(output, micro)
        loss, count = full_tensor(weighted.sum), full_tensor(torch.as_tensor(weighted.count))
        self._totals += torch.stack([loss.detach().double(), count.to(self._totals)])
        return loss * self._scale

    def _stage(self, number: int) -> DynamicShapeStage:
        group = self._mesh.pipeline_group
        assert group is not None
        span = self._spans[number]
        own = [self.module.get_submodule(name) for name in self._partial.names_of(span)]
        return DynamicShapeStage(
            StageModule(partial(self._root, self._train, number), own, self._partial.around),
            number,
            self._plan.stage_count,
            self.device.torch_device,
            group,
            lambda round_number: self._given(number, self._rounds[round_number]),
            len(self._ownership.dataflow.crossing(span.end)),
        )

    def _given(self, number: int, micro: MicroBatch) -> list[Tensor]:
        """In the shape of what a stage receives."""
        whole = self._partial.crossing(self._spans[number].begin, micro)
        if self._tensor is None:
            return whole
        return [torch.empty(self._tensor.sent_shape(x), dtype=x.dtype, device="meta") for x in whole]

    def _await_sent(self) -> None:
        for work in self._sent:
            work.wait()
        self._sent = []

    def _reduce_in_backward(self, reduces: bool) -> None:
        """Whether each backward reduces its gradients. If not they are reduced once, at the step's end."""
        if self._sharded is not None:
            self._sharded.set_requires_gradient_sync(reduces)
            self._sharded.set_is_last_backward(reduces)
            self._sharded.set_reshard_after_backward(self._sharding == "zero3")

    def _reduce_rest(self) -> None:
        """As torch's own stages do for a module that is fully_shard'ed, which ours is not by itself."""
        if self._sharded is None:
            return
        self._sharded.set_requires_gradient_sync(True)
        self._sharded.set_is_last_backward(True)
        self._sharded.set_reshard_after_backward(True)
        state = fully_shard.state(self._sharded)  # type: ignore[attr-defined]
        for each in state._state_ctx.all_states:
            for group in each._fsdp_param_groups:
                group.post_backward()
        state._root_post_backward_final_callback()

    def _materialize(self, module: nn.Module) -> None:
        super()._materialize(self.module if isinstance(module, _Root) else module)

    def _local_tensor(self, name: str, tensor: Tensor) -> LocalTensor:
        return self._ownership.shared_with_stages(
            super()._local_tensor(self._ownership.canonical.get(name, name), tensor), self._mesh.pipeline_rank
        )

    def _refuse_idle(self) -> None:
        if not self.trained:
            raise OnecurveError(
                f"plan {self._plan}: pipeline rank {self._mesh.pipeline_rank} has nothing to train (its blocks are "
                "frozen); use fewer stages, or another axis"
            )

    def _shared_parameter_reducers(self) -> Iterator[GradientReducer]:
        """One per set of ranks that hold the same parameters, in one order everywhere."""
        shared: dict[tuple[int, ...], list[Tensor]] = {}
        for local_tensor in sorted(self.trained, key=lambda each: each.name):
            holders = self._ownership.holders(local_tensor.name)
            if len(holders) > 1:
                shared.setdefault(holders, []).append(local_tensor.local)
        for holders in sorted(shared):
            yield GradientReducer(shared[holders], self._mesh.pipeline_group, holders)


class _Root(nn.Module):
    """What fully_shard takes for the root: called once per stage and round, and it always returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return work(*arguments)


def _alone(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Those that share no parameter with another, so that they can be sharded by themselves."""
    parameters = {name: {id(each) for each in model.get_submodule(name).parameters()} for name in names}
    return [
        name
        for name, own in parameters.items()
        if own and not any(own & others for other, others in parameters.items() if other != name)
    ]


def _raise_own(error: BaseException) -> None:
    """torch wraps what a stage raised; a mistake in the user's own code is told as that."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OnecurveError):
            raise cause
        cause = cause.__cause__
