"""What a whole model has, and which pipeline ranks have it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import nn

from onecurve.apply.partial_forward import Span
from onecurve.describe.dataflow import Dataflow
from onecurve.device.local_tensor import LocalTensor


class StageOwnership:
    """Parameters and buffers by name; of a tied one the first name stands for all."""

    def __init__(self, model: nn.Module, dataflow: Dataflow, stages: Sequence[int], ranks: int) -> None:
        """`stages`: how many blocks each has."""
        self.dataflow, self._ranks = dataflow, ranks
        self.spans = [Span(begin, end) for begin, end in pairwise([0, *accumulate(stages)])]
        first = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        every = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
        self.canonical = {name: first[id(tensor)] for name, tensor in every}
        self._sizes = [(first[id(t)], tuple(t.shape), t.dtype) for t in (*model.parameters(), *model.buffers())]
        self._holders: dict[str, tuple[int, ...]] = {}
        for name, canonical in self.canonical.items():
            self._holders[canonical] = tuple(sorted({*self._holders.get(canonical, ()), *self._having(name)}))

    def tensors(self, kept: torch.dtype) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
        return [(name, shape, kept if dtype.is_floating_point else dtype) for name, shape, dtype in self._sizes]

    def holders(self, name: str) -> tuple[int, ...]:
        return self._holders[name]

    def shared_with_stages(self, local_tensor: LocalTensor, rank: int) -> LocalTensor:
        """The piece as one of possibly several; those along the pipeline hold the same of it."""
        repeated = rank != self._holders.get(local_tensor.name, (0,))[0]
        return replace(local_tensor, repeated=repeated, everywhere=False)

    def _having(self, name: str) -> set[int]:
        """Pipeline ranks; what is in no block or unit is everywhere."""
        number = next((n for n, block in enumerate(self.dataflow.blocks) if name.startswith(block + ".")), None)
        unit = next((unit for unit in self.dataflow.units if name.startswith(unit + ".")), None)
        return {
            stage % self._ranks
            for stage, span in enumerate(self.spans)
            if (number is None or span.begin <= number < span.end)
            and (unit is None or unit in self.dataflow.needed(span.begin, span.end))
        }
