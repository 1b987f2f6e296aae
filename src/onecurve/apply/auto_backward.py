"""The common base of parts whose forward, loss and backward onecurve runs itself."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from onecurve.apply.base_part import BasePart
from onecurve.apply.forward_state import ForwardState
from onecurve.apply.gradient_hashes import GradientHashes
from onecurve.apply.gradient_reducer import GradientReducer, refuse_sparse_gradient, unsharded
from onecurve.apply.mixed_precision import shard_policy
from onecurve.apply.parameter_watch import ParameterWatch
from onecurve.apply.part_squares import PartSquares
from onecurve.apply.process_mesh import ProcessMesh
from onecurve.apply.running_buffers import RunningBuffers, UntracedBuffers, average, buffer_of
from onecurve.apply.shard import carry_attributes, gathered_parameters, shard, time_communication
from onecurve.apply.tensor import TensorAxis
from onecurve.apply.unused_parameters import UnusedParameters
from onecurve.describe.changed_buffers import refuse_untraced_differences
from onecurve.describe.plan import Sharding
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.device.device import Device
from onecurve.device.gradient_hooks import take_gradient_hooks
from onecurve.device.step_clock import step_clock
from onecurve.job.job import BatchNorm
from onecurve.job.row_tables import RowTables
from onecurve.model.deferred import DeferredModel


class AutoBackwardPart(BasePart):
    """A part split along `tensor` first and then sharded with fully_shard."""

    part_squares: PartSquares | None = None
    """Measures gradients of parts of a batch; None if the plan has one part, or splits the model's layers."""
    tables: RowTables | None = None
    """The model's embedding tables; None if it has none."""

    def __init__(
        self,
        deferred: DeferredModel,
        resolved: ResolvedPlan,
        mesh: ProcessMesh,
        device: Device,
        batch_norm: BatchNorm,
    ) -> None:
        plan = resolved.plan
        self.gradient_hooks = take_gradient_hooks(deferred.module)
        """The model's gradient hooks by parameter. The trainer runs them."""
        super().__init__(deferred, plan, mesh, device, batch_norm)
        self._mode: bool | None = None
        self._changed = resolved.changed_buffers
        self._changed_buffers, self._averaged_buffers = resolved.changed_buffers.names, resolved.averaged_buffers
        self._untraced_buffers: UntracedBuffers | None = None
        self._has_verified_buffers = False
        self._tensor_axis = TensorAxis(mesh.tensor_mesh, plan.layouts, plan.sequence) if mesh.tensor_mesh else None
        self._fsdp_root: FSDPModule | None = None
        self._unused_parameters: UnusedParameters | None = None

    @property
    def _sharding(self) -> Sharding:
        """The plan's sharding; zero2 if the shard axis has one rank (it exists for the replicas of tensor-parallel
        parameters), because there is nothing to all-gather again for backward."""
        return self._plan.sharding if self._plan.mesh.shard > 1 else "zero2"

    @property
    def _data_axis(self) -> str:
        """The axis along which gradients are reduced: `shard` if it has several ranks, also if `replicate` has."""
        return "shard" if self._plan.mesh.shard > 1 else "replicate"

    def _materialize_and_shard(self, root: nn.Module, blocks: Sequence[str]) -> None:
        """Materialize the parameters of `root` that this rank holds, split and sharded as the plan says."""
        if self._mesh.shard_mesh is not None:
            policy = shard_policy(self._plan)
            self._fsdp_root = shard(root, blocks, self._mesh.shard_mesh, self._materialize, self._sharding, policy)
            time_communication(self._fsdp_root, self._data_axis)
        else:
            self._materialize(root)
        if self._tensor_axis is not None:
            self._tensor_axis.register_redistribution_hooks(self.module)

    def _finish_construction(self) -> None:
        """Collect the local tensors. Call this after DDP or fully_shard has wrapped the module."""
        self._collect_local_tensors()
        left_over = unsharded(self.trainable) if self._fsdp_root else []
        if self._fsdp_root is not None:
            self._unused_parameters = UnusedParameters(self._fsdp_root, self.trainable, self._mesh.data_group)
            carry_attributes(self._fsdp_root, self._attributes)
        self._unsharded_reducer = GradientReducer(left_over, self._mesh.data_group)
        self._running_buffers = RunningBuffers(self.module, self._changed_buffers)
        self._watch = ParameterWatch(self.module, self._plan, self._changed, self._mesh.data_group)
        self.gradient_hashes = GradientHashes(self.trainable, self._fsdp_root)

    def _take_gradients(self) -> None:
        for local_tensor in self.trainable:
            local_tensor.take_gradient()
            refuse_sparse_gradient(local_tensor.name, local_tensor.local.grad)
        if self._mesh.data_group is None:
            return
        with step_clock.measure(self._data_axis):
            self._unsharded_reducer()
            if self._unused_parameters is not None:
                self._unused_parameters.remove_gradients()

    def drop_gathered(self) -> None:
        super().drop_gathered()
        if self._fsdp_root is not None:
            self._fsdp_root.reshard()  # the root of a pipeline part lies outside self.module

    def restore_buffers(self, where: Tensor | bool) -> None:
        self._running_buffers.restore(where)

    def forward_state(self, loss: Any) -> ForwardState:
        return ForwardState(self.module, loss, self.parameters, self._running_buffers)

    def _begin_step(self) -> None:
        self._set_mode(training=True)
        self._running_buffers.save()
        self._watch.begin_step(self._seen_parameters())
        if self._unused_parameters is not None:
            self._unused_parameters.begin_step()
        if not self._has_verified_buffers:
            self._untraced_buffers = UntracedBuffers(self.module, self._changed_buffers)

    def _seen_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters as forward sees them: those that fully_shard has gathered, once there are any."""
        gathered = gathered_parameters(self._fsdp_root) if self._fsdp_root is not None else {}
        for local_tensor in self.parameters:
            yield local_tensor.name, gathered.get(id(local_tensor.registered), local_tensor.registered)

    def _average_buffers(self) -> None:
        """Average the buffers that depend on the data over the data-parallel ranks, at the end of a round."""
        if not self._averaged_buffers:
            return
        with step_clock.measure(self._data_axis):
            average([buffer_of(self.module, name) for name in self._averaged_buffers], self._mesh.data_group)

    def _verify_buffers(self) -> None:
        """At the end of a step, refuse parameters that forward has changed; at the end of the first one, buffers that
        differ between ranks though the trace did not show it."""
        self._watch.end_step()
        if self._untraced_buffers is not None:
            differing = self._untraced_buffers.differing(self._mesh.data_group, self.device.torch_device)
            refuse_untraced_differences(differing)
            self._untraced_buffers, self._has_verified_buffers = None, True

    def _tensor_parallel_context(self) -> AbstractContextManager[None]:
        return nullcontext() if self._tensor_axis is None else self._tensor_axis.active()

    def _set_mode(self, training: bool) -> None:
        # The model's own train() may do more than to set the mode, and a user's loop may set the mode itself.
        if self._mode is not training or self.module.training is not training:
            if not training:
                self.sync_buffers()
            self.module.train(training)
            self._mode = training

    def _materialize(self, module: nn.Module) -> None:
        self._materializer.materialize(module)
        self._materializer.materialize_held_by(self.gradient_hooks.values())
        if self._tensor_axis is not None:
            self._tensor_axis.split(module, _qualified_name(self.module, module))


def _qualified_name(model: nn.Module, module: nn.Module) -> str:
    """The name of `module` inside `model`, or "" if it is the model itself."""
    return next((name for name, submodule in model.named_modules() if submodule is module), "")
