"""Sums of gradients over the ranks, for parameters that no engine looks after."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from onecurve.device.collectives import Group, all_reduce_sum, all_reduce_sum_among
from onecurve.device.local_tensor import LocalTensor

_BUCKET_BYTES = 25 * 2**20  # as DDP


def unsharded(local_tensors: Sequence[LocalTensor]) -> list[Tensor]:
    """What fully_shard does not look after: where there is none everything, otherwise scalars, which it refuses."""
    return [local_tensor.local for local_tensor in local_tensors if "shard" not in _axes(local_tensor.whole)]


def _axes(tensor: Tensor) -> tuple[str, ...]:
    return tensor.device_mesh.mesh_dim_names or () if isinstance(tensor, DTensor) else ()


class GradientReducer:
    """Called after backward: leaves in each gradient its sum over the ranks. A parameter that was used on some ranks
    gets a gradient on all of them; one that was used on none gets none."""

    def __init__(self, parameters: Sequence[Tensor], group: Group, members: Sequence[int] | None = None) -> None:
        """`members`: those ranks of the group that have the parameters, where not all do."""
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
            uses, *sums = torch.split(flat, [len(bucket), *(p.numel() for p in bucket)])
            for parameter, total, use in zip(bucket, sums, uses.tolist(), strict=True):
                parameter.grad = total.view_as(parameter) if use else None


def _buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Of one type each, and of bounded size."""
    for _, same in groupby(sorted(parameters, key=lambda p: str(p.dtype)), key=lambda p: p.dtype):
        bucket: list[Tensor] = []
        for parameter in same:
            if bucket and sum(p.nbytes for p in [*bucket, parameter]) > _BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(parameter)
        yield bucket
