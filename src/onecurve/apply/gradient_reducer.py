"""All-reduce of gradients for the parameters that neither DDP nor fully_shard reduces."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from onecurve.device.collectives import Group, all_reduce_sum, all_reduce_sum_among
from onecurve.device.local_tensor import LocalTensor

_BUCKET_BYTES = 25 * 2**20  # the same as DDP's default


def unsharded(local_tensors: Sequence[LocalTensor]) -> list[Tensor]:
    """The tensors that fully_shard does not manage: scalars and complex ones, or all of them if it is not used."""
    return [local_tensor.local for local_tensor in local_tensors if "shard" not in _mesh_axes(local_tensor.registered)]


def _mesh_axes(tensor: Tensor) -> tuple[str, ...]:
    return tensor.device_mesh.mesh_dim_names or () if isinstance(tensor, DTensor) else ()


class GradientReducer:
    """Replaces each gradient by its sum over the ranks, when called after backward.

    A parameter that was used on some ranks gets a gradient on all of them; one that was used on no rank gets none.
    """

    def __init__(self, parameters: Sequence[Tensor], group: Group, members: Sequence[int] | None = None) -> None:
        """`members`: the ranks of the group that hold the parameters; None if all of them do."""
        self._buckets = list(_buckets(parameters))
        self._group, self._members = group, members

    @torch.no_grad()
    def __call__(self) -> None:
        if self._group is None:
            return
        for bucket in self._buckets:
            used = torch.tensor([float(p.grad is not None) for p in bucket], dtype=bucket[0].dtype).to(bucket[0].device)
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in bucket]
            flat = torch.cat([used, *(gradient.reshape(-1) for gradient in gradients)])
            if self._members is None:
                all_reduce_sum(self._group, flat)
            else:
                all_reduce_sum_among(self._group, self._members, flat)
            use_counts, *sums = torch.split(flat, [len(bucket), *(p.numel() for p in bucket)])
            for parameter, total, use_count in zip(bucket, sums, use_counts.tolist(), strict=True):
                parameter.grad = total.view_as(parameter) if use_count else None


def _buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group the parameters into buckets of one dtype and at most `_BUCKET_BYTES` (more for a single larger one)."""
    for _, same_dtype in groupby(sorted(parameters, key=lambda p: str(p.dtype)), key=lambda p: p.dtype):
        bucket: list[Tensor] = []
        for parameter in same_dtype:
            if bucket and sum(p.nbytes for p in [*bucket, parameter]) > _BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(parameter)
        yield bucket
