"""Which chunks of a checkpoint a rank reads, and which elements of them go where."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from onecurve.checkpoint.hashed_json import CorruptedError, digest
from onecurve.checkpoint.manifest import MODEL, OPTIMIZER, Chunk, Manifest, ScalarState, StoredTensor
from onecurve.checkpoint.region import Region, overlap, regions
from onecurve.checkpoint.safetensors_format import DTYPES
from onecurve.checkpoint.store import StoredFile
from onecurve.device.local_tensor import Box, LocalTensor, Slices, Value

States = dict[str, dict[str, Value]]
"""Loaded optimizer state, by parameter name and state key."""


@dataclass
class ChunkRead:
    """One chunk to read, and the tensors and regions that its elements are copied to."""

    stored: StoredTensor
    chunk: Chunk
    targets: list[tuple[Tensor, Region]]

    @property
    def nbytes(self) -> int:
        return self.stored.nbytes(self.chunk)

    def fill(self, data: StoredFile, where: str) -> None:
        """Read the chunk from `data`, verify its hash, and copy its elements to the targets; errors name `where`."""
        content = data.read(self.chunk.begin, self.nbytes)
        if self.chunk.hash and digest(content) != self.chunk.hash:  # snapshots in memory have none
            raise CorruptedError(f"{where}: damaged, the chunk at byte {self.chunk.begin} does not match its hash")
        values = torch.frombuffer(content, dtype=DTYPES[self.stored.dtype]).view(self.chunk.sizes)
        with torch.no_grad():
            for target, region in self.targets:
                target[region.in_local].copy_(values[region.in_chunk])


@dataclass
class _NeededTensor:
    local_tensor: LocalTensor
    missing_elements: int
    """Local elements that no manifest so far contains."""
    covered: list[Slices] = field(default_factory=list)
    """Boxes of the full tensor that were found so far."""
    states: dict[str, Value] = field(default_factory=dict)


class ReadPlan:
    """Collects, manifest by manifest, the chunks that a rank has to read for its local tensors."""

    def __init__(self, local_tensors: Sequence[LocalTensor]) -> None:
        self._needed = {
            local_tensor.name: _NeededTensor(local_tensor, sum(box.elements for box in local_tensor.boxes))
            for local_tensor in local_tensors
        }
        self._incomplete_tensors = sum(needed.missing_elements > 0 for needed in self._needed.values())
        self.reads: dict[int, tuple[Manifest, list[ChunkRead]]] = {}
        """By saved rank: its manifest and the chunks to read from its data file."""

    @property
    def complete(self) -> bool:
        """True if the manifests added so far contain every local element."""
        return not self._incomplete_tensors

    def add_manifest(self, manifest: Manifest) -> None:
        """Plan to read the chunks of this saved rank that contain missing elements, and their optimizer state."""
        reads: list[ChunkRead] = []
        states = _states_in(manifest)
        for key, stored in manifest.tensors.items():
            name = key.removeprefix(MODEL)
            needed = self._needed.get(name) if key.startswith(MODEL) else None
            if needed is not None and needed.missing_elements:
                reads += self._plan_reads(needed, stored, states.get(name, {}), manifest.numbers.get(name, {}))
        if reads:
            self.reads[manifest.rank] = manifest, reads

    def require_all(self, where: str) -> None:
        """Raise CorruptedError if an element is in none of the manifests added so far."""
        for name, needed in self._needed.items():
            if needed.missing_elements:
                raise CorruptedError(f"{where}: {needed.missing_elements} elements of {name} are in none of its files")

    def optimizer_states(self) -> States:
        """Return the optimizer state of the local parameters; its tensors are filled when `reads` are carried out."""
        return {name: needed.states for name, needed in self._needed.items() if needed.states}

    def _plan_reads(
        self,
        needed: _NeededTensor,
        stored: StoredTensor,
        states: dict[str, StoredTensor],
        scalars: dict[str, ScalarState],
    ) -> Iterator[ChunkRead]:
        local_tensor = needed.local_tensor
        if stored.shape != local_tensor.shape:
            raise CorruptedError(
                f"{local_tensor.name}: saved with shape {stored.shape}, but the model's has shape {local_tensor.shape}"
            )
        new_regions = regions(stored, local_tensor.boxes)
        for region in new_regions:
            if any(overlap(region.in_full, box) for box in needed.covered):
                raise CorruptedError(f"{local_tensor.name}: some of its elements were saved twice")
            needed.covered.append(region.in_full)
        needed.missing_elements -= sum(region.elements for region in new_regions)
        self._incomplete_tensors -= not needed.missing_elements
        yield from _chunk_reads(stored, local_tensor.local, new_regions)
        if not new_regions:
            return
        for key, scalar in scalars.items():
            needed.states[key] = _parse_scalar(scalar)
        for key, state in states.items():
            same_shape = state.shape == local_tensor.shape
            boxes = local_tensor.boxes if same_shape else (Box(full_slices(state.shape), full_slices(state.shape)),)
            tensor = needed.states.get(key)
            if not isinstance(tensor, Tensor):
                tensor = needed.states[key] = _new_state_tensor(state, local_tensor, same_shape)
            yield from _chunk_reads(state, tensor, regions(state, boxes))


def full_slices(shape: Sequence[int]) -> Slices:
    """Return the slices that select every element of a tensor of this shape."""
    return tuple(slice(0, size) for size in shape)


def _chunk_reads(stored: StoredTensor, target: Tensor, wanted: Sequence[Region]) -> Iterator[ChunkRead]:
    by_chunk: dict[int, list[tuple[Tensor, Region]]] = {}
    for region in wanted:
        by_chunk.setdefault(region.chunk, []).append((target, region))
    for index, targets in by_chunk.items():
        yield ChunkRead(stored, stored.chunks[index], targets)


def _states_in(manifest: Manifest) -> dict[str, dict[str, StoredTensor]]:
    """Return the manifest's optimizer-state tensors, by parameter name and state key."""
    states: dict[str, dict[str, StoredTensor]] = {}
    for key, stored in manifest.tensors.items():
        if key.startswith(OPTIMIZER):
            name, _, state_key = key.removeprefix(OPTIMIZER).rpartition("/")
            states.setdefault(name, {})[state_key] = stored
    return states


def _parse_scalar(scalar: ScalarState) -> Value:
    try:
        if scalar.kind in ("int", "float"):
            return int(scalar.text) if scalar.kind == "int" else float(scalar.text)
        if scalar.kind == "bool":
            return scalar.text == "True"
        dtype = DTYPES[scalar.kind]
        number = (
            float(scalar.text)
            if dtype.is_floating_point
            else int(scalar.text.replace("True", "1").replace("False", "0"))
        )
        return torch.tensor(number, dtype=dtype)
    except (KeyError, ValueError, OverflowError, RuntimeError):
        raise CorruptedError(
            f"optimizer state: {scalar.text[:40]!r} is not a value of type {scalar.kind[:40]!r}"
        ) from None


def _new_state_tensor(state: StoredTensor, local_tensor: LocalTensor, same_shape: bool) -> Tensor:
    """Allocate an optimizer-state tensor; one of the parameter's shape also gets its strides, as fused kernels need."""
    if same_shape:
        return torch.zeros_like(local_tensor.local, dtype=DTYPES[state.dtype], requires_grad=False)
    # Saved by a single rank. Checked before memory is allocated: a damaged manifest may claim any shape.
    if sum(chunk.elements for chunk in state.chunks) != math.prod(state.shape):
        raise CorruptedError(f"{local_tensor.name}: its optimizer state of shape {state.shape} is incomplete")
    return torch.zeros(state.shape, dtype=DTYPES[state.dtype], device=local_tensor.local.device)
