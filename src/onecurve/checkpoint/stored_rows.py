"""Reads rows of embedding tables from a checkpoint: those of some slots, whatever ranks have saved them."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing

import torch
from torch import Tensor

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.manifest import TABLES, Manifest, StoredTensor, data_file
from onecurve.checkpoint.read_plan import ChunkRead
from onecurve.checkpoint.region import regions
from onecurve.checkpoint.safetensors_format import DTYPES
from onecurve.checkpoint.store import StoredFile
from onecurve.describe.slots import SLOTS, owner_of_slot
from onecurve.device.local_tensor import Box

StoredRows = tuple[str, Tensor, Tensor, Tensor]
"""Name of a table, and of some of its rows: ids, rows and optimizer states."""


def read_rows(checkpoint: Checkpoint, tables: Collection[str], slots: range) -> Iterator[StoredRows]:
    """Yield the rows of consecutive slots, saved rank by saved rank and table by table; nothing for a table that has
    none there."""
    ranks = checkpoint.root.ranks
    for rank in range(owner_of_slot(slots.start, ranks), owner_of_slot(slots.stop - 1, ranks) + 1):
        manifest = checkpoint.manifest(rank)
        stored = {name: parts for name, parts in _tables_in(manifest).items() if name in tables}
        if not stored:
            continue
        with closing(checkpoint.data(manifest)) as data:
            for name, parts in stored.items():
                ids, rows, states = _Reader(checkpoint, manifest, data, parts).rows(slots)
                if ids.numel():
                    yield name, ids, rows, states


def _tables_in(manifest: Manifest) -> dict[str, dict[str, StoredTensor]]:
    """The stored parts of each table."""
    tables: dict[str, dict[str, StoredTensor]] = {}
    for key, stored in manifest.tensors.items():
        if key.startswith(TABLES):
            name, _, part = key.removeprefix(TABLES).rpartition("/")
            tables.setdefault(name.rpartition("@")[0], {})[part] = stored
    return tables


class _Reader:
    """Reads one table from one data file."""

    def __init__(
        self, checkpoint: Checkpoint, manifest: Manifest, data: StoredFile, parts: Mapping[str, StoredTensor]
    ) -> None:
        self._where = f"{checkpoint.where}/{data_file(manifest.rank)}"
        self._data, self._parts = data, parts

    def rows(self, slots: range) -> tuple[Tensor, Tensor, Tensor]:
        if "ends" not in self._parts or self._parts["ends"].shape != (SLOTS,):
            raise CorruptedError(f"{self._where}: a table without its slots")
        ends = self._read("ends", 0, SLOTS)
        begin = int(ends[slots.start - 1]) if slots.start else 0
        end = int(ends[slots.stop - 1])
        ids, rows, states = (self._read(part, begin, end) for part in ("ids", "rows", "states"))
        return ids, rows, states

    def _read(self, part: str, begin: int, end: int) -> Tensor:
        """Read the lines from `begin` to `end`. A part without elements is not stored: the states of an optimizer that
        has none, or all parts of a table without rows."""
        stored = self._parts.get(part)
        if begin == end or (stored is None and part == "states"):
            return torch.empty(end - begin, 0)
        if stored is None:
            raise CorruptedError(f"{self._where}: a table without its {part}")
        if not 0 <= begin <= end <= stored.shape[0]:
            raise CorruptedError(f"{self._where}: a table of {stored.shape[0]} rows has no rows {begin} to {end}")
        inner = stored.shape[1:]
        lines = torch.empty(end - begin, *inner, dtype=DTYPES[stored.dtype])
        sides = tuple(slice(0, size) for size in inner)
        box = Box((slice(begin, end), *sides), (slice(0, end - begin), *sides))
        found = regions(stored, [box])
        if sum(region.elements for region in found) != lines.numel():
            raise CorruptedError(f"{self._where}: a table is incomplete")
        for region in found:
            ChunkRead(stored, stored.chunks[region.chunk], [(lines, region)]).fill(self._data, self._where)
        return lines
