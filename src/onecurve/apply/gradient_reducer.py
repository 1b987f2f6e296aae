"""All-reduce of gradients for the parameters that neither DDP nor fully_shard reduces."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from onecurve.describe.errors import OnecurveError
from onecurve.device.collectives import Group, all_reduce_sum, all_reduce_sum_among
from onecurve.device.local_tensor import LocalTensor

_BUCKET_BYTES = 25 * 2**20  # the same as DDP's default


def unsharded(local_tensors: Sequence[LocalTensor]) -> list[Tensor]:
    """The tensors that fully_shard does not manage: scalars and complex ones, or all of them if it is not used."""
    return [local_tensor.local for local_tensor in local_tensors if "shard" not in _mesh_axes(local_tensor.registered)]


def _mesh_axes(tensor: Tensor) -> tuple[str, ...]:
    return tensor.device_mesh.mesh_dim_names or () if isinstance(tensor, DTensor) else ()


def refuse_sparse_gradient(name: str, gradient: Tensor | None) -> None:
    """Refuse a parameter's gradient if it is sparse, which neither the optimizers nor the reduction support."""
    if gradient is not None and gradient.is_sparse:
        raise OnecurveError(
            f"model: parameter {name!r} has a sparse gradient, which is not supported; call F.embedding with "
            "sparse=False"
        )


class GradientReducer:
    """Replaces each gradient by its sum over the ranks, when called after backward.

    A parameter that was used on some ranks gets a gradient on all of them; one that was used on no rank gets none.
    """

    def __init__(self, parameters: Sequence[Tensor], group: Group, members: Sequence[int] | None = None) -> None:
        """`members`: the ranks of the group that hold the parameters; None if all of them do."""
        self._parameters = parameters
        self._group, self._members = group, members

    @torch.no_grad()
    def __call__(self) -> None:
        if self._group is None or not self._parameters:
            return
        # The host knows which gradients there are while the device still computes them, so these flags are summed by
        # the hosts: to read them from the device would make the host wait for it.
        has_gradient = torch.tensor([p.grad is not None for p in self._parameters], dtype=torch.int32)
        ranks_with_gradient = self._sum(has_gradient).tolist()
        used = [p for p, ranks in zip(self._parameters, ranks_with_gradient, strict=True) if ranks]
        for bucket in _buckets(used):
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in bucket]
            flat = self._sum(torch.cat([gradient.reshape(-1) for gradient in gradients]))
            sums = torch.split(flat, [p.numel() for p in bucket])
            for parameter, total in zip(bucket, sums, strict=True):
                parameter.grad = total.view_as(parameter)

    def _sum(self, values: Tensor) -> Tensor:
        if self._members is None:
            return all_reduce_sum(self._group, values)
        return all_reduce_sum_among(self._group, self._members, values)


def _buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group the parameters into buckets of one dtype and at most `_BUCKET_BYTES` (more for a single larger one)."""
    for _, same_dtype in groupby(sorted(parameters, key=lambda p: str(p.dtype)), key=lambda p: p.dtype):
        bucket: list[Tensor] = []
        size = 0
        for parameter in same_dtype:
            if bucket and size + parameter.nbytes > _BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
            bucket.append(parameter)
            size += parameter.nbytes
        yield bucket
