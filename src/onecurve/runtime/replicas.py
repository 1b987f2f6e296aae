"""Compares the replicas of a model: a fault of the hardware that changes a weight on one of them goes unnoticed."""

from collections import Counter
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from onecurve.describe.errors import CorruptedReplicaError
from onecurve.device.collectives import Group


class Replicas:
    """The ranks that hold the same parameters as this one. All of them must call `compare`."""

    def __init__(self, parameters: Sequence[Tensor], group: Group, ranks: Sequence[int]) -> None:
        """`parameters`: what this rank holds of them. `group`: the replicas; None if there is one. `ranks`: theirs."""
        self._parameters, self._group, self._ranks = parameters, group, ranks

    def compare(self) -> None:
        """Raise CorruptedReplicaError if the parameters are not the same, bit for bit.

        One all-reduce of two numbers; only if they differ, each rank gets all of them.
        """
        if self._group is None:
            return
        own = checksum(self._parameters)
        largest = torch.stack([own, ~own])  # of a and of not a, which is least where a is largest
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._group)
        most, least = int(largest[0]), ~int(largest[1])
        if most == least:
            return
        sums = [torch.zeros_like(own) for _ in self._ranks]
        dist.all_gather(sums, own, group=self._group)
        raise CorruptedReplicaError([self._ranks[index] for index in outliers([int(each) for each in sums])])


def outliers(values: Sequence[int]) -> list[int]:
    """Indices of the values that differ from most others; all indices if no value is more frequent than all others."""
    (value, count), *others = Counter(values).most_common(2)
    if others and others[0][1] == count:
        return list(range(len(values)))
    return [index for index, each in enumerate(values) if each != value]


@torch.no_grad()
def checksum(tensors: Sequence[Tensor]) -> Tensor:
    """A number that changes with every single bit of the tensors."""
    total = torch.zeros((), dtype=torch.int64, device=tensors[0].device)
    for tensor in tensors:
        total += _checksum(tensor)
    return total


def _checksum(tensor: Tensor) -> Tensor:
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    aligned = tensor.is_contiguous() and tensor.nbytes % 8 == 0 and tensor.storage_offset() * tensor.itemsize % 8 == 0
    if aligned:
        return tensor.reshape(-1).view(torch.int64).sum()
    return torch.hash_tensor(tensor).view(torch.int64)
