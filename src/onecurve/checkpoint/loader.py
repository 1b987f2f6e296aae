"""Loads: from whatever plan a checkpoint was saved under into whatever pieces this rank holds now.

A rank reads the manifests it needs, and of the data files the chunks that hold something of its own. Everything is
verified before it is used, and what no rank has a use for is verified too: the ranks share that.
"""

import math
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from onecurve.checkpoint.hashed_json import CorruptedError, digest, load_hashed
from onecurve.checkpoint.manifest import (
    LARGEST_MANIFEST,
    LARGEST_ROOT,
    ROOT,
    VERSION,
    Manifest,
    Root,
    StoredTensor,
    data_file,
    manifest_file,
)
from onecurve.checkpoint.manifest_search_order import manifest_search_order
from onecurve.checkpoint.read_plan import ChunkRead, ReadPlan, States, everything
from onecurve.checkpoint.region import regions
from onecurve.checkpoint.safetensors_format import DTYPES
from onecurve.checkpoint.store import Store, StoredFile, step_of
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.device.local_tensor import Box, LocalTensor


class Checkpoint:
    """One that exists, its root manifest verified."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self.name = store, name
        self.where = f"{store.where}/{name}"
        content = store.read(name, ROOT, LARGEST_ROOT)
        version = load_hashed(dict[str, Any], content, f"{self.where}/{ROOT}").get("version")
        if version != VERSION:
            raise OnecurveError(
                f"{self.where}: written in version {version!r} of the format, this onecurve reads {VERSION}; use the "
                "onecurve that wrote it, or another --out"
            )
        self.root = load_hashed(Root, content, f"{self.where}/{ROOT}")
        if not name.endswith(self.root.token) or step_of(name) != self.root.standing.step:
            raise CorruptedError(f"{self.where}: its root manifest is that of another checkpoint")

    def load(self, local_tensors: Sequence[LocalTensor], mesh: Mesh, rank: int) -> States:
        """Fill the pieces; returns what the optimizer kept of them. `mesh`, `rank`: where this rank is now."""
        wanted = ReadPlan(local_tensors)
        looked_at = set()
        for number in manifest_search_order(self.root.plan.mesh, mesh, rank):
            if wanted.found:
                break
            looked_at.add(number)
            wanted.look(self.manifest(number))
        wanted.demand_all(self.where)
        for manifest, reads in wanted.reads.values():
            with closing(self._data(manifest)) as data:
                for read in sorted(reads, key=lambda each: each.chunk.begin):
                    read.fill(data, f"{self.where}/{data_file(manifest.rank)}")
        # What no rank had to read could be damaged unseen. The ranks share it.
        for number in range(rank, self.root.ranks, mesh.size):
            if number not in looked_at and (manifest := self.manifest(number)).size:
                self._data(manifest).close()
        return wanted.states()

    def manifest(self, rank: int) -> Manifest:
        where = f"{self.where}/{manifest_file(rank)}"
        found = load_hashed(Manifest, self._store.read(self.name, manifest_file(rank), LARGEST_MANIFEST), where)
        if found.token != self.root.token or found.rank != rank:
            raise CorruptedError(f"{where}: belongs to another checkpoint or rank")
        return found

    def tensors(self) -> dict[str, list[tuple[Manifest, StoredTensor]]]:
        """Everything in it by name, for who wants whole tensors one after the other. Grows with what was saved."""
        found: dict[str, list[tuple[Manifest, StoredTensor]]] = {}
        for rank in range(self.root.ranks):
            manifest = self.manifest(rank)
            for key, stored in manifest.tensors.items():
                found.setdefault(key, []).append((manifest, stored))
        return found

    def whole(self, key: str, stored: Sequence[tuple[Manifest, StoredTensor]]) -> Tensor:
        """One tensor, put together from what the ranks wrote of it."""
        shape, dtype = stored[0][1].shape, DTYPES[stored[0][1].dtype]
        elements = sum(chunk.elements for _, each in stored for chunk in each.chunks)
        if elements != math.prod(shape):  # before memory is taken for it
            raise CorruptedError(f"{self.where}: {key} is not all there")
        tensor = torch.empty(shape, dtype=dtype)
        box = Box(everything(shape), everything(shape))
        for manifest, each in stored:
            with closing(self._data(manifest)) as data:
                for region in regions(each, [box]):
                    read = ChunkRead(each, each.chunks[region.chunk], [(tensor, region)])
                    read.fill(data, f"{self.where}/{data_file(manifest.rank)}")
        return tensor

    def _data(self, manifest: Manifest) -> StoredFile:
        """The data file, its length and header verified."""
        where = f"{self.where}/{data_file(manifest.rank)}"
        data = self._store.open(self.name, data_file(manifest.rank))
        try:
            if data.size != manifest.size:
                raise CorruptedError(f"{where}: {data.size} bytes long, {manifest.size} were written")
            if digest(data.read(0, manifest.header)) != manifest.header_hash:
                raise CorruptedError(f"{where}: damaged, its header's hash is not what was written")
        except BaseException:
            data.close()
            raise
        return data
