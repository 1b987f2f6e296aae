"""Which pipeline ranks hold which parameters and buffers of the full model."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import nn

from onecurve.apply.partial_forward import StageSpan
from onecurve.describe.dataflow import Dataflow
from onecurve.device.local_tensor import LocalTensor


class StageOwnership:
    """The owners of parameters and buffers, by name. A tied tensor is listed under its first (canonical) name."""

    def __init__(self, model: nn.Module, dataflow: Dataflow, stages: Sequence[int], ranks: int) -> None:
        """`model`: the full model, before any module is removed; `stages`: the number of blocks of each stage."""
        self.dataflow, self._ranks = dataflow, ranks
        self.spans = [StageSpan(begin, end) for begin, end in pairwise([0, *accumulate(stages)])]
        first_name = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        all_named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
        self.canonical_names = {name: first_name[id(tensor)] for name, tensor in all_named}
        tensors = (*model.parameters(), *model.buffers())
        self._specs = [(first_name[id(tensor)], tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        self._owners: dict[str, tuple[int, ...]] = {}
        for name, canonical in self.canonical_names.items():
            self._owners[canonical] = tuple(sorted({*self._owners.get(canonical, ()), *self._ranks_that_need(name)}))

    def tensor_specs(self, master_dtype: torch.dtype) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
        """Name, shape and dtype of all parameters and buffers; floating-point tensors have `master_dtype`."""
        return [(name, shape, master_dtype if dtype.is_floating_point else dtype) for name, shape, dtype in self._specs]

    def owners(self, canonical_name: str) -> tuple[int, ...]:
        """The pipeline ranks that hold the tensor, in ascending order."""
        return self._owners[canonical_name]

    def with_ownership(self, local_tensor: LocalTensor, rank: int) -> LocalTensor:
        """Return the local tensor of pipeline rank `rank`, marked if an earlier rank holds the same elements."""
        held_by_earlier_stage = rank != self._owners.get(local_tensor.name, (0,))[0]
        return replace(local_tensor, held_by_earlier_stage=held_by_earlier_stage, is_replicated_everywhere=False)

    def _ranks_that_need(self, name: str) -> set[int]:
        """The pipeline ranks that hold the tensor: all of them if it belongs to no block or unit."""
        number = next((n for n, block in enumerate(self.dataflow.blocks) if name.startswith(block + ".")), None)
        unit = next((unit for unit in self.dataflow.units if name.startswith(unit + ".")), None)
        return {
            stage % self._ranks
            for stage, span in enumerate(self.spans)
            if (number is None or span.begin <= number < span.end)
            and (unit is None or unit in self.dataflow.units_needed(span.begin, span.end))
        }
