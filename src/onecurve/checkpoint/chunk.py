"""Chunks: the stretches in which a tensor's elements are written and verified, none longer than a reader may hold."""

import math
from collections.abc import Iterator, Sequence
from zlib import crc32

from torch import nn

from onecurve.device.local_tensor import LocalTensor, Slices

ELEMENTS = 1 << 22
"""At most so many in a chunk: 16 MiB of float32."""

Extent = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes."""


def cut(sizes: Sequence[int], limit: int = ELEMENTS) -> list[Extent]:
    """A box of these sizes in parts of at most `limit` elements, each as many whole rows as fit."""
    if not math.prod(sizes):
        return []
    if math.prod(sizes) <= limit:
        return [((0,) * len(sizes), tuple(sizes))]
    rows, *rest = sizes
    inner = math.prod(rest)
    if inner > limit:
        parts = cut(rest, limit)
        return [((row, *offsets), (1, *lengths)) for row in range(rows) for offsets, lengths in parts]
    step = limit // inner
    none = (0,) * len(rest)
    return [((row, *none), (min(step, rows - row), *rest)) for row in range(0, rows, step)]


def own_chunks(local_tensor: LocalTensor) -> Iterator[tuple[Slices, Slices]]:
    """What this rank writes of a piece: where it lies in the whole, and here.

    Along `replicate` parameters are dealt out chunk by chunk, so that copies share the work; of a buffer, which a user
    may let differ between copies, all are the first copy's. Who writes what follows from names and sizes alone.
    """
    if not local_tensor.lead or local_tensor.repeated:
        return
    dealt = local_tensor.copies if isinstance(local_tensor.local, nn.Parameter) else 0
    number = crc32(local_tensor.name.encode())
    for box in local_tensor.boxes:
        for offsets, sizes in cut([side.stop - side.start for side in box.whole]):
            writer = number % dealt if dealt else 0
            number += 1
            if writer == local_tensor.copy:
                yield _within(box.whole, offsets, sizes), _within(box.local, offsets, sizes)


def _within(box: Slices, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Slices:
    begins = [side.start + offset for side, offset in zip(box, offsets, strict=True)]
    return tuple(slice(begin, begin + size) for begin, size in zip(begins, sizes, strict=True))
