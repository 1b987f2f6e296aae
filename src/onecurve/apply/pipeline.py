"""The axis `pipeline`: the part of a rank that runs one or several stages of the model's blocks.

The gradient-accumulation rounds of a step are the pipeline's micro-batches; torch's schedules decide in which order a
stage runs them. Parameters that several stages hold (tied weights, parameters of the model itself) stay equal, because
their gradients are summed over those stages.
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
from onecurve.describe.errors import OnecurveError
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.seed import mix
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor, absent_tensor
from onecurve.device.precision import autocast
from onecurve.device.step_clock import step_clock
from onecurve.job.batch import MicroBatch, Objective
from onecurve.job.job import BatchNorm
from onecurve.job.weighted import add_weighted
from onecurve.job.whole_batch import TWO_PASSES
from onecurve.model.deferred import DeferredModel, TraceableModule
from onecurve.model.fake_mode import refuse_fake_tensors


class PipelinePart(AutoBackwardPart):
    """A part that uses `pipeline`, alone or together with any of the other axes."""

    def __init__(
        self,
        deferred: DeferredModel,
        resolved: ResolvedPlan,
        mesh: ProcessMesh,
        device: Device,
        traceable: TraceableModule,
        batch_norm: BatchNorm,
    ) -> None:
        """`traceable`: a copy of the deferred model, used only to infer shapes. This part changes it."""
        super().__init__(deferred, resolved, mesh, device, batch_norm)
        plan, dataflow = resolved.plan, resolved.dataflow
        assert dataflow is not None
        self._ownership = StageOwnership(self.module, dataflow, plan.stages, plan.mesh.pipeline)
        stages = range(mesh.pipeline_rank, plan.stage_count, plan.mesh.pipeline)
        self._stage_spans = {stage: self._ownership.spans[stage] for stage in stages}
        gathered_dtype = shard_policy(plan).param_dtype if mesh.shard_mesh else None
        shapes = ShapeInference(
            traceable,
            [*dataflow.blocks, *dataflow.units],
            device.torch_device,
            gathered_dtype or self._master_dtype,
            lambda: autocast(plan.precision, device),
        )
        self._partial_forward = PartialForward(
            self.module, dataflow, list(self._stage_spans.values()), shapes, device.torch_device
        )
        # The order matters: first what replaces a block's forward, then the engines that register hooks.
        local_names = self._partial_forward.local_names
        self._transform_blocks([name for name in local_names if name in dataflow.blocks], self._changed_buffers)
        self._root = _Root(self.module)
        shardable = _without_shared_parameters(self.module, local_names)
        shard_units = [name for name in shardable if name not in dataflow.units_used_without_call]
        self._materialize_and_shard(self._root, [f"model.{name}" for name in shard_units])
        self._partial_forward.register_output_hooks()
        self._finish_construction()
        self._refuse_nothing_trainable()
        self._shared_reducers = list(self._shared_parameter_reducers())
        self._stages = [self._make_stage(stage) for stage in self._stage_spans]
        self._schedule = make_schedule(plan.schedule, self._stages, plan.rounds)
        self._rounds: Sequence[MicroBatch] = ()
        self._pending_sends: list[dist.Work] = []

    @refuse_fake_tensors()
    def run_rounds(
        self, rounds: Sequence[MicroBatch], objective: Objective, scale: float, seeds: Sequence[int]
    ) -> Tensor:
        self._begin_step()
        self._wait_for_sends()
        with step_clock.measure("copy"):
            self._rounds, self._seeds = [self.place(micro) for micro in rounds], seeds
        self._objective, self._scale = objective, scale
        self._totals = torch.zeros(2, dtype=torch.float64, device=self.device.torch_device)
        self._set_reduce_in_backward(self._plan.reduce == "round")
        for stage in self._stages:
            stage.has_backward = True
            stage.clear_runtime_states()
        count = len(rounds)
        # The schedule's own time, outside of forward and backward, is spent waiting for other stages.
        with self._tensor_parallel_context(), step_clock.measure("pipeline"):
            try:
                self._schedule._step_microbatches(
                    [()] * count, [{"round_number": n} for n in range(count)], [None] * count, return_outputs=False
                )
            except RuntimeError as error:
                _raise_wrapped_onecurve_error(error)
                raise
        self._finish_gradient_reduction()
        self._take_gradients()
        with step_clock.measure("pipeline"):
            for reduce_shared in self._shared_reducers:
                reduce_shared()
        self._verify_buffers()
        return self._totals if self.reports_metrics else torch.zeros_like(self._totals)

    def preview(self, rounds: Sequence[MicroBatch], seeds: Sequence[int]) -> list[Any]:  # noqa: ARG002
        raise OnecurveError(f"loss: {TWO_PASSES}; use another axis")

    @refuse_fake_tensors()
    def infer(self, micro: MicroBatch) -> Any:
        """Run the model stage by stage, in evaluation mode.

        A rank that does not hold the last stage returns zeros of the output's shape, without waiting for later stages.
        """
        self._set_mode(training=False)
        group, device = self._mesh.pipeline_group, self.device.torch_device
        assert group is not None
        with torch.no_grad(), self._tensor_parallel_context(), autocast(self._plan.precision, self.device):
            for stage in self._stage_spans:
                shapes = self._received_shapes(stage, micro)
                received = [torch.empty(x.shape, dtype=x.dtype, device=device) for x in shapes]
                for buffer in received:
                    dist.recv(buffer, group=group, group_src=(stage - 1) % group.size())
                output = self._root(self._stage_forward, stage, micro, None, *received)
                if stage == self._plan.stage_count - 1:
                    return pytree.tree_map(full_tensor, output)
                self._wait_for_sends()
                next_rank = (stage + 1) % group.size()
                self._pending_sends = [dist.isend(x, group=group, group_dst=next_rank) for x in output]  # type: ignore[misc]
        return self._partial_forward.zero_output(micro)

    @property
    def state_dict_tensors(self) -> list[LocalTensor]:
        """The state_dict of all stages, because all ranks take part in gathering it. Tensors that this rank does not
        hold have no local elements."""
        local = {local_tensor.name: local_tensor for local_tensor in self.state}
        return [
            local.get(name) or absent_tensor(name, shape, dtype, self.device.torch_device, self.group)
            for name, shape, dtype in self._ownership.tensor_specs(self._master_dtype)
            if name in self._state_dict_names
        ]

    def _stage_forward(self, stage: int, micro: MicroBatch, seed: int | None, *received: Tensor) -> Any:
        """Return the tensors to send to the next stage, or the model's output for the last stage."""
        inputs: Sequence[Tensor] = received
        if self._tensor_axis is not None:
            full = self._partial_forward.boundary_shapes(self._stage_spans[stage].begin, micro)
            inputs = [self._tensor_axis.from_received(x, like) for x, like in zip(received, full, strict=True)]
        reseed = (lambda _: None) if seed is None else (lambda position: self.device.seed(mix(seed, position)))
        output = self._partial_forward.run(self._stage_spans[stage], micro, inputs, reseed)
        if stage == self._plan.stage_count - 1:
            return output
        to_send = output if self._tensor_axis is None else map(self._tensor_axis.to_local_for_send, output)
        return tuple(map(_sendable, to_send))

    def _train_forward(self, stage: int, round_number: int, *received: Tensor) -> Any:
        """The forward of one stage and round: return the tensors for the next stage, or the scaled loss."""
        micro = self._rounds[round_number]
        with autocast(self._plan.precision, self.device):
            output = self._stage_forward(stage, micro, self._seeds[round_number], *received)
            if stage < self._plan.stage_count - 1:
                return output
            weighted = self._objective(output, micro)
        loss = full_tensor(weighted.sum)
        add_weighted(self._totals, loss, full_tensor(weighted.count))
        return loss * self._scale

    def _make_stage(self, stage: int) -> DynamicShapeStage:
        group = self._mesh.pipeline_group
        assert group is not None
        span = self._stage_spans[stage]
        modules = [self.module.get_submodule(name) for name in self._partial_forward.names_of(span)]
        forward = partial(self._root, self._train_forward, stage)
        return DynamicShapeStage(
            module=StageModule(
                forward, modules, self._partial_forward.surrounding_modules, lambda: self._partial_forward.recomputes
            ),
            stage=stage,
            stage_count=self._plan.stage_count,
            device=self.device.torch_device,
            group=group,
            received_shapes=lambda round_number: self._received_shapes(stage, self._rounds[round_number]),
            sent_tensors=len(self._ownership.dataflow.tensors_crossing(span.end)),
        )

    def _received_shapes(self, stage: int, micro: MicroBatch) -> list[Tensor]:
        """Fake tensors with the shapes and dtypes that the stage receives on this rank."""
        full = self._partial_forward.boundary_shapes(self._stage_spans[stage].begin, micro)
        if self._tensor_axis is None:
            return full
        return [torch.empty(self._tensor_axis.sent_shape(x), dtype=x.dtype, device="meta") for x in full]

    def _wait_for_sends(self) -> None:
        for work in self._pending_sends:
            work.wait()
        self._pending_sends = []

    def _set_reduce_in_backward(self, reduces: bool) -> None:
        """Reduce gradients in each round's backward, or, if `reduces` is False, once at the end of the step."""
        if self._fsdp_root is not None:
            self._fsdp_root.set_requires_gradient_sync(reduces)
            self._fsdp_root.set_is_last_backward(reduces)
            self._fsdp_root.set_reshard_after_backward(self._sharding == "zero3")

    def _finish_gradient_reduction(self) -> None:
        """Reduce the remaining gradients.

        torch's pipeline stages do this for a module that is itself an FSDPModule; a StageModule is not one.
        """
        if self._fsdp_root is None:
            return
        self._fsdp_root.set_requires_gradient_sync(True)
        self._fsdp_root.set_is_last_backward(True)
        self._fsdp_root.set_reshard_after_backward(True)
        root_state = fully_shard.state(self._fsdp_root)  # type: ignore[attr-defined]
        for state in root_state._state_ctx.all_states:
            for parameter_group in state._fsdp_param_groups:
                parameter_group.post_backward()
        root_state._root_post_backward_final_callback()

    def _materialize(self, module: nn.Module) -> None:
        super()._materialize(self.module if isinstance(module, _Root) else module)

    def _local_tensor(self, name: str, tensor: Tensor) -> LocalTensor:
        canonical_name = self._ownership.canonical_names.get(name, name)
        return self._ownership.with_ownership(super()._local_tensor(canonical_name, tensor), self._mesh.pipeline_rank)

    def _refuse_nothing_trainable(self) -> None:
        if not self.trainable:
            raise OnecurveError(
                f"plan {self._plan}: pipeline rank {self._mesh.pipeline_rank} has no trainable parameter (all of its "
                "blocks are frozen); use fewer stages, or another axis"
            )

    def _shared_parameter_reducers(self) -> Iterator[GradientReducer]:
        """One reducer per set of ranks that hold the same parameters, in the same order on every rank."""
        shared: dict[tuple[int, ...], list[Tensor]] = {}
        for local_tensor in sorted(self.trainable, key=lambda local_tensor: local_tensor.name):
            owners = self._ownership.owners(local_tensor.name)
            if len(owners) > 1:
                shared.setdefault(owners, []).append(local_tensor.local)
        for owners in sorted(shared):
            yield GradientReducer(shared[owners], self._mesh.pipeline_group, owners)


class _Root(nn.Module):
    """The root module for fully_shard, called once per stage and round.

    The model itself cannot be the root, because a stage ends the model's forward with an exception. This forward always
    returns.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, stage_forward: Callable[..., Any], *arguments: Any) -> Any:
        return stage_forward(*arguments)


def _sendable(tensor: Tensor) -> Tensor:
    """Make a tensor contiguous, and no view: torch detaches what a stage sends in place, which views do not allow."""
    contiguous = tensor.contiguous()
    return contiguous.clone() if contiguous._is_view() and contiguous.requires_grad else contiguous


def _without_shared_parameters(model: nn.Module, names: Sequence[str]) -> list[str]:
    """The modules that share no parameter with another one, so that each can be sharded by itself."""
    parameters = {name: {id(parameter) for parameter in model.get_submodule(name).parameters()} for name in names}
    return [
        name
        for name, own in parameters.items()
        if own and not any(own & others for other, others in parameters.items() if other != name)
    ]


def _raise_wrapped_onecurve_error(error: BaseException) -> None:
    """Raise the OnecurveError that torch's schedule wrapped, if there is one: its message is written for the user."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OnecurveError):
            raise cause
        cause = cause.__cause__
