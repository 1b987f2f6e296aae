"""Intersects the saved chunks of a tensor with the boxes that a rank needs, by the arithmetic of PyTorch's DCP."""

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
    """A box of elements that a saved chunk contains and this rank needs."""

    chunk: int
    """Index of the chunk in `StoredTensor.chunks`."""
    in_chunk: Slices
    """Slices of the elements within the chunk."""
    in_local: Slices
    """Slices of the elements within the local tensor."""
    in_full: Slices
    """Slices of the elements within the full tensor."""

    @property
    def elements(self) -> int:
        return math.prod(side.stop - side.start for side in self.in_local)


def regions(stored: StoredTensor, boxes: Sequence[Box]) -> list[Region]:
    """Return the non-empty intersections of the stored chunks with the boxes."""
    saved = [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in stored.chunks]
    boxes = [box for box in boxes if box.elements]
    wanted = [
        ChunkStorageMetadata(
            torch.Size([side.start for side in box.full]), torch.Size([side.stop - side.start for side in box.full])
        )
        for box in boxes
    ]
    metadata = TensorStorageMetadata(TensorProperties(), torch.Size(stored.shape), saved)
    intersections = []
    for item in create_read_items_for_chunk_list("", metadata, wanted):
        box_index, chunk_index = item.dest_index.index, item.storage_index.index
        assert box_index is not None
        assert chunk_index is not None
        local_corner = [side.start for side in boxes[box_index].local]
        intersections.append(
            Region(
                chunk=chunk_index,
                in_chunk=_slices(item.storage_offsets, item.lengths),
                in_local=_slices(_sum(local_corner, item.dest_offsets), item.lengths),
                in_full=_slices(_sum(wanted[box_index].offsets, item.dest_offsets), item.lengths),
            )
        )
    return intersections


def overlap(one: Slices, other: Slices) -> bool:
    """Return True if two boxes share an element."""
    return all(a.start < b.stop and b.start < a.stop for a, b in zip(one, other, strict=True))


def _sum(corner: Sequence[int], offsets: Sequence[int]) -> list[int]:
    return [start + offset for start, offset in zip(corner, offsets, strict=True)]


def _slices(begins: Sequence[int], lengths: Sequence[int]) -> Slices:
    return tuple(slice(begin, begin + length) for begin, length in zip(begins, lengths, strict=True))
