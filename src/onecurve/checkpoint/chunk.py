"""Chunks: the boxes of elements in which a tensor is written and verified, small enough for a reader's memory."""

import math
from collections.abc import Iterator, Sequence
from zlib import crc32

from torch import nn

from onecurve.device.local_tensor import LocalTensor, Slices

MAX_CHUNK_ELEMENTS = 1 << 22
"""Maximum number of elements in a chunk: 16 MiB in float32."""

Extent = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes of a box, one number per dimension."""


def split_into_chunks(sizes: Sequence[int], limit: int = MAX_CHUNK_ELEMENTS) -> list[Extent]:
    """Split a box of these sizes into boxes of at most `limit` elements, each with as many full rows as fit."""
    if not math.prod(sizes):
        return []
    if math.prod(sizes) <= limit:
        return [((0,) * len(sizes), tuple(sizes))]
    rows, *row_sizes = sizes
    row_elements = math.prod(row_sizes)
    if row_elements > limit:
        row_chunks = split_into_chunks(row_sizes, limit)
        return [((row, *offsets), (1, *lengths)) for row in range(rows) for offsets, lengths in row_chunks]
    step = limit // row_elements
    row_offsets = (0,) * len(row_sizes)
    return [((row, *row_offsets), (min(step, rows - row), *row_sizes)) for row in range(0, rows, step)]


def chunks_to_write(local_tensor: LocalTensor) -> Iterator[tuple[Slices, Slices]]:
    """Yield the chunks that this rank writes, each as its slices in the full tensor and in the local one.

    The replicas of a parameter divide its chunks among themselves. All chunks of a buffer are written by the first
    replica, because users may let buffers differ between replicas. The assignment depends on names and sizes alone, so
    ranks need no communication to agree on it.
    """
    if not local_tensor.is_first_holder or local_tensor.held_by_earlier_stage:
        return
    writers = local_tensor.replicas if isinstance(local_tensor.local, nn.Parameter) else 1
    number = crc32(local_tensor.name.encode())
    for box in local_tensor.boxes:
        for offsets, sizes in split_into_chunks([side.stop - side.start for side in box.full]):
            writer = number % writers
            number += 1
            if writer == local_tensor.replica:
                yield _slices_within(box.full, offsets, sizes), _slices_within(box.local, offsets, sizes)


def _slices_within(box: Slices, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Slices:
    begins = [side.start + offset for side, offset in zip(box, offsets, strict=True)]
    return tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))
