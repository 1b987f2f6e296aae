"""What a whole model has, and which pipeline ranks have it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import torch
from torch import nn

from onecurve.apply.staged import Span
from onecurve.describe.flow import Flow
from onecurve.device.piece import Piece


class Inventory:
    """Parameters and buffers by name; of a tied one the first name stands for all."""

    def __init__(self, model: nn.Module, flow: Flow, stages: Sequence[int], ranks: int) -> None:
        """`stages`: how many blocks each has."""
        self.flow, self._ranks = flow, ranks
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

    def as_held(self, piece: Piece, rank: int) -> Piece:
        """The piece as one of possibly several; those along the pipeline hold the same of it."""
        repeated = rank != self._holders.get(piece.name, (0,))[0]
        return replace(piece, repeated=repeated, everywhere=False)

    def _having(self, name: str) -> set[int]:
        """Pipeline ranks; what is in no block or unit is everywhere."""
        number = next((n for n, block in enumerate(self.flow.blocks) if name.startswith(block + ".")), None)
        unit = next((unit for unit in self.flow.units if name.startswith(unit + ".")), None)
        return {
            stage % self._ranks
            for stage, span in enumerate(self.spans)
            if (number is None or span.begin <= number < span.end)
            and (unit is None or unit in self.flow.needed(span.begin, span.end))
        }
