"""Which saved chunks hold what a rank wants of a tensor: the arithmetic of torch's distributed checkpoints."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from onecurve.checkpoint.manifest import StoredTensor
from onecurve.device.local_tensor import Box, Slices


@dataclass(frozen=True)
class Region:
    """Elements that a chunk has and somebody here wants."""

    chunk: int
    """Its number among the stored ones."""
    within: Slices
    """Where they lie in the chunk."""
    local: Slices
    """Where they belong."""
    whole: Slices
    """Where they lie in the whole tensor."""

    @property
    def elements(self) -> int:
        return math.prod(side.stop - side.start for side in self.local)


def regions(stored: StoredTensor, boxes: Sequence[Box]) -> list[Region]:
    saved = [ChunkStorageMetadata(torch.Size(each.offsets), torch.Size(each.sizes)) for each in stored.chunks]
    held = [box for box in boxes if box.elements]
    wanted = [
        ChunkStorageMetadata(
            torch.Size([side.start for side in box.whole]), torch.Size([side.stop - side.start for side in box.whole])
        )
        for box in held
    ]
    size = torch.Size(stored.shape)
    found = []
    for item in create_read_items_for_chunk_list("", TensorStorageMetadata(TensorProperties(), size, saved), wanted):
        index = item.dest_index.index
        number = item.storage_index.index
        assert index is not None
        assert number is not None
        corner = [side.start for side in held[index].local]
        found.append(
            Region(
                number,
                _slices(item.storage_offsets, item.lengths),
                _slices([a + b for a, b in zip(corner, item.dest_offsets, strict=True)], item.lengths),
                _slices([a + b for a, b in zip(wanted[index].offsets, item.dest_offsets, strict=True)], item.lengths),
            )
        )
    return found


def overlap(one: Slices, other: Slices) -> bool:
    return all(a.start < b.stop and b.start < a.stop for a, b in zip(one, other, strict=True))


def _slices(begins: Sequence[int], lengths: Sequence[int]) -> Slices:
    return tuple(slice(begin, begin + length) for begin, length in zip(begins, lengths, strict=True))
