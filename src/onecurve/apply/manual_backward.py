"""The part for training loops in which the user calls the model's children and the backward pass.

onecurve does not see where a step begins and ends. Replicated gradients are therefore all-reduced when an optimizer
update asks for them. Under `shard`, each child with an optimizer is sharded by itself, and every backward
reduce-scatters its gradients.
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
from onecurve.device.gradient_hooks import take_gradient_hooks
from onecurve.device.local_tensor import LocalTensor
from onecurve.job.job import BatchNorm
from onecurve.model.deferred import DeferredModel
from onecurve.model.fake_mode import refuse_fake_tensors


class ManualBackwardPart(BasePart):
    """A part that uses the axes `replicate` and `shard`; the user runs forward and backward."""

    def __init__(
        self,
        deferred: DeferredModel,
        plan: Plan,
        mesh: ProcessMesh,
        device: Device,
        children: Mapping[str, Sequence[str]],
        batch_norm: BatchNorm,
    ) -> None:
        """`children`: the children that have an optimizer ("" is the model itself), each with its blocks' names."""
        if mesh.mesh.size > 1 and (hooked := take_gradient_hooks(deferred.module)):
            raise OnecurveError(
                f"model: parameter {next(iter(hooked))!r} has a gradient hook, which under plan {plan} and "
                "backward='mine' would see a part of the gradient on each rank; change the gradient in the step of the "
                "optimizer instead, or use a plan of one rank"
            )
        super().__init__(deferred, plan, mesh, device, batch_norm)
        for child, blocks in children.items():
            self._transform_blocks([_join(child, block) for block in blocks] or [child])
            module = self.module.get_submodule(child)
            autocast_forward(module, plan.precision, device)
            module.forward = refuse_fake_tensors()(module.forward)
            if mesh.shard_mesh is not None:
                policy = shard_policy(plan)
                shard(module, blocks, mesh.shard_mesh, self._materializer.materialize, plan.sharding, policy)
        self._materializer.materialize(self.module)
        self._collect_local_tensors()
        self._trainable_of_child = {child: self._trainable_under(child) for child in children}
        self._reducers = {
            child: GradientReducer(unsharded(local_tensors), mesh.data_group)
            for child, local_tensors in self._trainable_of_child.items()
        }
        self._require_one_optimizer_each()

    def local_tensors(self, child: str) -> list[LocalTensor]:
        """The trainable parameters of the child."""
        return self._trainable_of_child[child]

    def backward(self, scaled: Tensor) -> None:
        """Run backward from a scaled loss; gradients accumulate."""
        scaled.backward()  # type: ignore[no-untyped-call]

    def reduce(self, child: str) -> None:
        """Replace the child's gradients by their sums over all data-parallel ranks."""
        for local_tensor in self._trainable_of_child[child]:
            local_tensor.take_gradient()
        self._reducers[child]()
        for module in self.module.get_submodule(child).modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # zero2 may still hold gathered parameters, which the update makes stale

    def _trainable_under(self, child: str) -> list[LocalTensor]:
        prefix = f"{child}." if child else ""
        return [local_tensor for local_tensor in self.trainable if local_tensor.name.startswith(prefix)]

    def _require_one_optimizer_each(self) -> None:
        for local_tensor in self.trainable:
            owners = [child for child, tensors in self._trainable_of_child.items() if local_tensor in tensors]
            if len(owners) != 1:
                owner_text = f"the optimizers of {' and '.join(owners)}" if owners else "no optimizer"
                raise OnecurveError(
                    f"optimizer: parameter {local_tensor.name!r} belongs to {owner_text}; every trainable parameter "
                    "must belong to exactly one (add an optimizer for its child of the model, or set its requires_grad "
                    "to False)"
                )


def _join(child: str, block: str) -> str:
    return f"{child}.{block}" if child else block
