"""Full matrices of sharded parameters, gathered in turn: each rank computes one of them, and all get the result."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.device.local_tensor import LocalTensor
from onecurve.job.full_parameter import FullParameterOptimizer, ParameterPart


class FullMatrices:
    """The parameters of a rank, and the ranks that hold the other parts of them."""

    def __init__(self, local_tensors: Sequence[LocalTensor], group: Group) -> None:
        self._tensors = {id(tensor.local): tensor for tensor in local_tensors}
        self._group = group

    def attach(self, optimizer: FullParameterOptimizer) -> None:
        """Let the optimizer work on parts of parameters."""
        optimizer.parts, optimizer.reduce, optimizer.on_full = self.part, self._reduce, self.compute

    def part(self, parameter: Tensor) -> ParameterPart:
        tensor = self._tensors[id(parameter)]
        return ParameterPart(tensor.shape, tuple((box.full, box.local) for box in tensor.boxes), tensor.counts_in_norm)

    def compute(
        self, parameters: Sequence[Tensor], values: Sequence[Tensor], compute: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        """Apply `compute` to the full tensors of `values`, which are sharded like `parameters`; return the results'
        elements of this rank. As many tensors are gathered at a time as there are ranks, each on one rank, so that the
        ranks share the work and hold one full tensor besides the one that is being sent."""
        if self._group is None or all(self._tensors[id(each)].is_replicated_everywhere for each in parameters):
            return [compute(value) for value in values]
        pairs = list(zip(map(self.part, parameters), values, strict=True))
        results = []
        for begin in range(0, len(pairs), self._group.size()):
            results += self._turn(self._group, pairs[begin : begin + self._group.size()], compute)
        return results

    def _turn(
        self,
        group: dist.ProcessGroup,
        pairs: Sequence[tuple[ParameterPart, Tensor]],
        compute: Callable[[Tensor], Tensor],
    ) -> list[Tensor]:
        own = None
        for owner, (part, value) in enumerate(pairs):
            full = value.new_zeros(part.shape)
            for in_full, in_local in part.boxes if part.counts else ():
                full[in_full] = value[in_local]
            dist.reduce(full, group_dst=owner, group=group)
            own = full if owner == group.rank() else own
        result = compute(own) if own is not None else None
        results = []
        for owner, (part, value) in enumerate(pairs):
            full = result if owner == group.rank() and result is not None else value.new_empty(part.shape)
            full = full.contiguous()
            dist.broadcast(full, group_src=owner, group=group)
            local = torch.empty_like(value)
            for in_full, in_local in part.boxes:
                local[in_local] = full[in_full]
            results.append(local)
        return results

    def _reduce(self, sums: Tensor) -> Tensor:
        return all_reduce_sum(self._group, sums)
