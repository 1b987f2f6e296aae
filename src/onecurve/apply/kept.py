"""What one rank holds where the user calls the model's children and keeps the backward pass.

No engine sees where a step begins and ends, so replicated gradients are summed when an update asks for them. Under
`shard` each named child is sharded by itself, and its gradients are summed by every backward.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from onecurve.apply.blueprint import Blueprint
from onecurve.apply.held import Held
from onecurve.apply.mesh import LiveMesh
from onecurve.apply.precision import compute_so, shard_policy
from onecurve.apply.reduction import Reduction, unsharded
from onecurve.apply.shard import shard
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.device import Device
from onecurve.device.piece import Piece
from onecurve.job.job import BatchNorm


class KeptPart(Held):
    """A rank of `replicate` and `shard`, run by the user."""

    def __init__(
        self,
        blueprint: Blueprint,
        plan: Plan,
        mesh: LiveMesh,
        device: Device,
        children: Mapping[str, Sequence[str]],
        batch_norm: BatchNorm,
    ) -> None:
        """`children`: those that have an optimizer ("" is the model itself), each with the names of its blocks."""
        super().__init__(blueprint, plan, mesh, device, batch_norm)
        for child, blocks in children.items():
            self._change_forward([_join(child, block) for block in blocks] or [child])
            compute_so(self.module.get_submodule(child), plan.precision, device)
            if mesh.shard_mesh is not None:
                policy = shard_policy(plan)
                module = self.module.get_submodule(child)
                shard(module, blocks, mesh.shard_mesh, self._weights.realize, plan.sharding, policy)
        self._weights.realize(self.module)
        self._take_pieces()
        self._pieces = {child: self._under(child) for child in children}
        self._reductions = {child: Reduction(unsharded(self._pieces[child]), mesh.data_group) for child in children}
        self._refuse_orphans()

    def pieces(self, child: str) -> list[Piece]:
        """What of the child is trained."""
        return self._pieces[child]

    def backward(self, scaled: Tensor) -> None:
        scaled.backward()  # type: ignore[no-untyped-call]

    def reduce(self, child: str) -> None:
        """Leave in the child's gradients their sums over all ranks."""
        for piece in self._pieces[child]:
            piece.take_gradient()
        self._reductions[child]()
        for each in self.module.get_submodule(child).modules():
            if isinstance(each, FSDPModule):
                each.reshard()  # zero2 may still hold gathered parameters, which the update makes stale

    def _under(self, child: str) -> list[Piece]:
        return [piece for piece in self.trained if not child or piece.name.startswith(child + ".")]

    def _refuse_orphans(self) -> None:
        owners = [[child for child in self._pieces if piece in self._pieces[child]] for piece in self.trained]
        for piece, found in zip(self.trained, owners, strict=True):
            if len(found) != 1:
                whose = "no optimizer" if not found else f"the optimizers of {' and '.join(found)}"
                raise OnecurveError(
                    f"optimizer: parameter {piece.name!r} belongs to {whose}; every trained parameter needs one "
                    "(name another child of the model, or set requires_grad to False)"
                )


def _join(child: str, block: str) -> str:
    return f"{child}.{block}" if child else block
