"""What a rank needs of a checkpoint, where it was found, and how it gets there."""

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
"""By parameter: what its optimizer kept of it."""


@dataclass
class ChunkRead:
    """One chunk, and where its elements go."""

    stored: StoredTensor
    chunk: Chunk
    targets: list[tuple[Tensor, Region]]

    def fill(self, data: StoredFile, where: str) -> None:
        content = data.read(self.chunk.begin, self.stored.nbytes(self.chunk))
        if digest(content) != self.chunk.hash:
            raise CorruptedError(
                f"{where}: damaged, the hash of the chunk at byte {self.chunk.begin} is not that written"
            )
        values = torch.frombuffer(content, dtype=DTYPES[self.stored.dtype]).view(self.chunk.sizes)
        with torch.no_grad():
            for target, region in self.targets:
                target[region.local].copy_(values[region.within])


@dataclass
class _Sought:
    local_tensor: LocalTensor
    left: int
    """Elements not found yet."""
    covered: list[Slices] = field(default_factory=list)
    states: dict[str, Value] = field(default_factory=dict)


class ReadPlan:
    """What a rank needs of a checkpoint, and where it was found."""

    def __init__(self, local_tensors: Sequence[LocalTensor]) -> None:
        self._sought = {
            local_tensor.name: _Sought(local_tensor, sum(box.elements for box in local_tensor.boxes))
            for local_tensor in local_tensors
        }
        self._left = sum(sought.left > 0 for sought in self._sought.values())
        self.reads: dict[int, tuple[Manifest, list[ChunkRead]]] = {}

    @property
    def found(self) -> bool:
        return not self._left

    def look(self, manifest: Manifest) -> None:
        reads: list[ChunkRead] = []
        states = _states_in(manifest)
        for key, stored in manifest.tensors.items():
            name = key.removeprefix(MODEL)
            sought = self._sought.get(name) if key.startswith(MODEL) else None
            if sought is not None and sought.left:
                reads += self._take(sought, stored, states.get(name, {}), manifest.numbers.get(name, {}))
        if reads:
            self.reads[manifest.rank] = manifest, reads

    def demand_all(self, where: str) -> None:
        for name, sought in self._sought.items():
            if sought.left:
                raise CorruptedError(f"{where}: {sought.left} elements of {name} are in none of its files")

    def states(self) -> States:
        return {name: sought.states for name, sought in self._sought.items() if sought.states}

    def _take(
        self, sought: _Sought, stored: StoredTensor, states: dict[str, StoredTensor], numbers: dict[str, ScalarState]
    ) -> Iterator[ChunkRead]:
        local_tensor = sought.local_tensor
        if stored.shape != local_tensor.shape:
            raise CorruptedError(
                f"{local_tensor.name}: saved with shape {stored.shape}, the model has {local_tensor.shape}"
            )
        found = regions(stored, local_tensor.boxes)
        for region in found:
            if any(overlap(region.whole, other) for other in sought.covered):
                raise CorruptedError(f"{local_tensor.name}: some of its elements were saved twice")
            sought.covered.append(region.whole)
        sought.left -= sum(region.elements for region in found)
        self._left -= not sought.left
        yield from _reads(stored, local_tensor.local, found)
        if not found:
            return
        for key, number in numbers.items():
            sought.states[key] = _value(number)
        for key, state in states.items():
            alike = state.shape == local_tensor.shape
            boxes = local_tensor.boxes if alike else (Box(everything(state.shape), everything(state.shape)),)
            tensor = sought.states.get(key)
            if not isinstance(tensor, Tensor):
                tensor = sought.states[key] = _room(state, local_tensor, alike)
            yield from _reads(state, tensor, regions(state, boxes))


def _reads(stored: StoredTensor, target: Tensor, found: Sequence[Region]) -> Iterator[ChunkRead]:
    by_chunk: dict[int, list[tuple[Tensor, Region]]] = {}
    for region in found:
        by_chunk.setdefault(region.chunk, []).append((target, region))
    for number, targets in by_chunk.items():
        yield ChunkRead(stored, stored.chunks[number], targets)


def _states_in(manifest: Manifest) -> dict[str, dict[str, StoredTensor]]:
    found: dict[str, dict[str, StoredTensor]] = {}
    for key, stored in manifest.tensors.items():
        if key.startswith(OPTIMIZER):
            name, _, state = key.removeprefix(OPTIMIZER).rpartition("/")
            found.setdefault(name, {})[state] = stored
    return found


def _value(number: ScalarState) -> Value:
    try:
        if number.kind in ("int", "float"):
            return int(number.text) if number.kind == "int" else float(number.text)
        if number.kind == "bool":
            return number.text == "True"
        dtype = DTYPES[number.kind]
        plain = (
            float(number.text)
            if dtype.is_floating_point
            else int(number.text.replace("True", "1").replace("False", "0"))
        )
        return torch.tensor(plain, dtype=dtype)
    except (KeyError, ValueError, OverflowError, RuntimeError):
        raise CorruptedError(f"a number {number.text[:40]!r} of kind {number.kind[:40]!r}") from None


def _room(state: StoredTensor, local_tensor: LocalTensor, alike: bool) -> Tensor:
    """Laid out as the parameter is, since fused kernels walk through both side by side."""
    if alike:
        return torch.zeros_like(local_tensor.local, dtype=DTYPES[state.dtype], requires_grad=False)
    if sum(chunk.elements for chunk in state.chunks) != math.prod(state.shape):  # whole in one manifest, or a lie
        raise CorruptedError(f"{local_tensor.name}: its optimizer's state of shape {state.shape} is not all there")
    return torch.zeros(state.shape, dtype=DTYPES[state.dtype], device=local_tensor.local.device)


def everything(shape: Sequence[int]) -> Slices:
    return tuple(slice(0, size) for size in shape)
