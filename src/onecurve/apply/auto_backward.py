"""What one rank holds of a model that onecurve runs itself: forward, loss and backward."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from onecurve.apply import sync_batch_norm
from onecurve.apply.base_part import BasePart
from onecurve.apply.gradient_reducer import GradientReducer, unsharded
from onecurve.apply.mixed_precision import shard_policy
from onecurve.apply.process_mesh import ProcessMesh
from onecurve.apply.shard import shard
from onecurve.apply.tensor import TensorAxis
from onecurve.describe.plan import Plan, Sharding
from onecurve.device.device import Device
from onecurve.job.job import BatchNorm
from onecurve.model.deferred import DeferredModel


class AutoBackwardPart(BasePart):
    """Cut along `tensor` first, then sharded."""

    def __init__(
        self, deferred: DeferredModel, plan: Plan, mesh: ProcessMesh, device: Device, batch_norm: BatchNorm
    ) -> None:
        super().__init__(deferred, plan, mesh, device, batch_norm)
        self._tensor = TensorAxis(mesh.tensor_mesh, plan.layouts, plan.sequence) if mesh.tensor_mesh else None
        self._sharded: FSDPModule | None = None

    @property
    def _sharding(self) -> Sharding:
        """A shard axis of one, which replicas of split parameters need, has nothing to gather again."""
        return self._plan.sharding if self._plan.mesh.shard > 1 else "zero2"

    def _split(self, root: nn.Module, blocks: Sequence[str]) -> None:
        """Make the root real, as much of it as this rank keeps."""
        if self._mesh.shard_mesh is not None:
            policy = shard_policy(self._plan)
            self._sharded = shard(root, blocks, self._mesh.shard_mesh, self._materialize, self._sharding, policy)
        else:
            self._materialize(root)
        if self._tensor is not None:
            self._tensor.set_gates(self.module)

    def _finish_construction(self) -> None:
        """Once the engines have taken hold of everything."""
        self._collect_local_tensors()
        self._reduce_scalars = GradientReducer(unsharded(self.trained) if self._sharded else [], self._mesh.data_group)
        self._statistics = sync_batch_norm.BatchNormStatistics(self.module)

    def _take_gradients(self) -> None:
        for local_tensor in self.trained:
            local_tensor.take_gradient()
        self._reduce_scalars()

    def drop_gathered(self) -> None:
        super().drop_gathered()
        if self._sharded is not None:
            self._sharded.reshard()  # a pipeline's root is not part of the model

    def restore_batch_norm(self, where: Tensor | bool) -> None:
        self._statistics.undo(where)

    def _running(self) -> AbstractContextManager[None]:
        return nullcontext() if self._tensor is None else self._tensor.running()

    def _set_mode(self, training: bool) -> None:
        if self.module.training is not training:
            if not training:
                self.sync_buffers()
            self.module.train(training)

    def _materialize(self, module: nn.Module) -> None:
        self._weights.materialize(module)
        if self._tensor is not None:
            self._tensor.split(module, _name_in(self.module, module))


def _name_in(whole: nn.Module, module: nn.Module) -> str:
    return next((name for name, each in whole.named_modules() if each is module), "")
