"""Loads a checkpoint, whatever plan saved it, into the local tensors of this rank.

A rank reads the manifests that it needs, and from the data files the chunks that overlap its own elements. Everything
is verified before it is used. Files that no rank needs are verified too; the ranks share that work.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from onecurve.checkpoint.hashed_json import CorruptedError, digest, load_hashed
from onecurve.checkpoint.manifest import (
    MAX_MANIFEST_BYTES,
    MAX_ROOT_BYTES,
    OLDEST_VERSION,
    VERSION,
    Manifest,
    Root,
    StoredTensor,
    data_file,
    manifest_file,
)
from onecurve.checkpoint.manifest_search_order import manifest_search_order
from onecurve.checkpoint.read_plan import ChunkRead, ReadPlan, States, full_slices
from onecurve.checkpoint.region import regions
from onecurve.checkpoint.safetensors_format import DTYPES
from onecurve.checkpoint.store import ROOT, ReadableStore, StoredFile, step_of
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.device.local_tensor import Box, LocalTensor


class Checkpoint:
    """An existing checkpoint whose root manifest has been verified."""

    def __init__(self, store: ReadableStore, name: str, base_store: ReadableStore | None = None) -> None:
        """`base_store`: where the checkpoint is on which this one is based; None: in the same store."""
        self._store, self.name, self._base_store = store, name, base_store or store
        self.where = f"{store.where}/{name}"
        content = store.read(name, ROOT, MAX_ROOT_BYTES)
        version = load_hashed(dict[str, Any], content, f"{self.where}/{ROOT}").get("version")
        if version not in range(OLDEST_VERSION, VERSION + 1):
            raise OnecurveError(
                f"{self.where}: the checkpoint has version {version!r}, but this onecurve reads versions "
                f"{OLDEST_VERSION} to {VERSION}; use the onecurve that wrote it, or another --out"
            )
        self.root = load_hashed(Root, content, f"{self.where}/{ROOT}")
        if not name.endswith(self.root.token) or step_of(name) != self.root.point.step:
            raise CorruptedError(f"{self.where}: its root manifest belongs to another checkpoint")

    def rows_base(self) -> "Checkpoint | None":
        """Return the checkpoint with the rows of embedding tables that this one leaves out; None if it has all."""
        if not (name := self.root.point.rows_base):
            return None
        base = Checkpoint(self._base_store, name)
        if base.root.point.rows_base:
            raise CorruptedError(f"{base.where}: it was saved as one that has all rows, but does not")
        return base

    def load(
        self,
        local_tensors: Sequence[LocalTensor],
        mesh: Mesh,
        rank: int,
        on_progress: Callable[[int, int], None] = lambda _, __: None,
    ) -> States:
        """Fill the local tensors and return their optimizer state. `mesh` and `rank` say where this rank is now.
        `on_progress`: told the bytes that were read, and those to be read in all."""
        read_plan = ReadPlan(local_tensors)
        manifests_read = set()
        for saved_rank in manifest_search_order(self.root.plan.mesh, mesh, rank):
            if read_plan.complete:
                break
            manifests_read.add(saved_rank)
            read_plan.add_manifest(self.manifest(saved_rank))
        read_plan.require_all(self.where)
        done, total = 0, sum(read.nbytes for _, reads in read_plan.reads.values() for read in reads)
        for manifest, reads in read_plan.reads.values():
            with closing(self.data(manifest)) as data:
                for read in sorted(reads, key=lambda read: read.chunk.begin):
                    read.fill(data, f"{self.where}/{data_file(manifest.rank)}")
                    done += read.nbytes
                    on_progress(done, total)
        # Damage in files that no rank needs would go unnoticed, so the ranks share their verification.
        for saved_rank in range(rank, self.root.ranks, mesh.size):
            if saved_rank not in manifests_read and (manifest := self.manifest(saved_rank)).size:
                self.data(manifest).close()
        return read_plan.optimizer_states()

    def manifest(self, rank: int) -> Manifest:
        """Read and verify the manifest that a rank wrote."""
        where = f"{self.where}/{manifest_file(rank)}"
        manifest = load_hashed(Manifest, self._store.read(self.name, manifest_file(rank), MAX_MANIFEST_BYTES), where)
        if manifest.token != self.root.token or manifest.rank != rank:
            raise CorruptedError(f"{where}: belongs to another checkpoint or rank")
        return manifest

    def tensors(self) -> dict[str, list[tuple[Manifest, StoredTensor]]]:
        """Return the stored parts of every tensor by name. Memory grows with the number of ranks that saved."""
        parts: dict[str, list[tuple[Manifest, StoredTensor]]] = {}
        for rank in range(self.root.ranks):
            manifest = self.manifest(rank)
            for key, stored in manifest.tensors.items():
                parts.setdefault(key, []).append((manifest, stored))
        return parts

    def full_tensor(self, key: str, parts: Sequence[tuple[Manifest, StoredTensor]]) -> Tensor:
        """Assemble one tensor from the parts that the ranks stored."""
        shape, dtype = parts[0][1].shape, DTYPES[parts[0][1].dtype]
        elements = sum(chunk.elements for _, stored in parts for chunk in stored.chunks)
        if elements != math.prod(shape):  # checked before memory is allocated
            raise CorruptedError(f"{self.where}: {key} is incomplete")
        tensor = torch.empty(shape, dtype=dtype)
        box = Box(full_slices(shape), full_slices(shape))
        for manifest, stored in parts:
            with closing(self.data(manifest)) as data:
                for region in regions(stored, [box]):
                    read = ChunkRead(stored, stored.chunks[region.chunk], [(tensor, region)])
                    read.fill(data, f"{self.where}/{data_file(manifest.rank)}")
        return tensor

    def data(self, manifest: Manifest) -> StoredFile:
        """Open a data file and verify its length and header."""
        where = f"{self.where}/{data_file(manifest.rank)}"
        data = self._store.open(self.name, data_file(manifest.rank))
        try:
            if data.size != manifest.size:
                raise CorruptedError(f"{where}: it has {data.size} bytes, but {manifest.size} were written")
            if digest(data.read(0, manifest.header)) != manifest.header_hash:
                raise CorruptedError(f"{where}: damaged: the hash of its header does not match")
        except BaseException:
            data.close()
            raise
        return data
