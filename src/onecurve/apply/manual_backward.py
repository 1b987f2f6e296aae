"""What one rank holds where the user calls the model's children and keeps the backward pass.

No engine sees where a step begins and ends, so replicated gradients are summed when an update asks for them. Under
`shard` each named child is sharded by itself, and its gradients are summed by every backward.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from onecurve.apply.base_part import BasePart
from onecurve.apply.gradient_reducer import GradientReducer, unsharded
from onecurve.apply.mixed_precision import autocast_forward, shard_policy
from onecurve.apply.process_mesh import ProcessMesh
from onecurve.apply.shard import shard
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor
from onecurve.job.job import BatchNorm
from onecurve.model.deferred import DeferredModel


class ManualBackwardPart(BasePart):
    """A rank of `replicate` and `shard`, run by the user."""

    def __init__(
        self,
        deferred: DeferredModel,
        plan: Plan,
        mesh: ProcessMesh,
        device: Device,
        children: Mapping[str, Sequence[str]],
        batch_norm: BatchNorm,
    ) -> None:
        """`children`: those that have an optimizer ("" is the model itself), each with the names of its blocks."""
        super().__init__(deferred, plan, mesh, device, batch_norm)
        for child, blocks in children.items():
            self._change_forward([_join(child, block) for block in blocks] or [child])
            autocast_forward(self.module.get_submodule(child), plan.precision, device)
            if mesh.shard_mesh is not None:
                policy = shard_policy(plan)
                module = self.module.get_submodule(child)
                shard(module, blocks, mesh.shard_mesh, self._weights.materialize, plan.sharding, policy)
        self._weights.materialize(self.module)
        self._collect_local_tensors()
        self._local_tensors = {child: self._under(child) for child in children}
        self._reducers = {
            child: GradientReducer(unsharded(self._local_tensors[child]), mesh.data_group) for child in children
        }
        self._refuse_orphans()

    def local_tensors(self, child: str) -> list[LocalTensor]:
        """What of the child is trained."""
        return self._local_tensors[child]

    def backward(self, scaled: Tensor) -> None:
        scaled.backward()  # type: ignore[no-untyped-call]

    def reduce(self, child: str) -> None:
        """Leave in the child's gradients their sums over all ranks."""
        for local_tensor in self._local_tensors[child]:
            local_tensor.take_gradient()
        self._reducers[child]()
        for each in self.module.get_submodule(child).modules():
            if isinstance(each, FSDPModule):
                each.reshard()  # zero2 may still hold gathered parameters, which the update makes stale

    def _under(self, child: str) -> list[LocalTensor]:
        return [local_tensor for local_tensor in self.trained if not child or local_tensor.name.startswith(child + ".")]

    def _refuse_orphans(self) -> None:
        owners = [
            [child for child in self._local_tensors if local_tensor in self._local_tensors[child]]
            for local_tensor in self.trained
        ]
        for local_tensor, found in zip(self.trained, owners, strict=True):
            if len(found) != 1:
                whose = "no optimizer" if not found else f"the optimizers of {' and '.join(found)}"
                raise OnecurveError(
                    f"optimizer: parameter {local_tensor.name!r} belongs to {whose}; every trained parameter needs one "
                    "(name another child of the model, or set requires_grad to False)"
                )


def _join(child: str, block: str) -> str:
    return f"{child}.{block}" if child else block
