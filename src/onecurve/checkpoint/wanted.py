"""What a rank needs of a checkpoint, where it was found, and how it gets there."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from onecurve.checkpoint.format import DTYPES
from onecurve.checkpoint.manifest import MODEL, OPTIMIZER, Chunk, Manifest, Number, Stored
from onecurve.checkpoint.region import Region, overlap, regions
from onecurve.checkpoint.seal import DamagedError, digest
from onecurve.checkpoint.store import Data
from onecurve.device.piece import Box, Piece, Slices, Value

States = dict[str, dict[str, Value]]
"""By parameter: what its optimizer kept of it."""


@dataclass
class Read:
    """One chunk, and where its elements go."""

    stored: Stored
    chunk: Chunk
    targets: list[tuple[Tensor, Region]]

    def fill(self, data: Data, where: str) -> None:
        content = data.read(self.chunk.begin, self.stored.nbytes(self.chunk))
        if digest(content) != self.chunk.hash:
            raise DamagedError(
                f"{where}: damaged, the hash of the chunk at byte {self.chunk.begin} is not that written"
            )
        values = torch.frombuffer(content, dtype=DTYPES[self.stored.dtype]).view(self.chunk.sizes)
        with torch.no_grad():
            for target, region in self.targets:
                target[region.local].copy_(values[region.within])


@dataclass
class _Sought:
    piece: Piece
    left: int
    """Elements not found yet."""
    covered: list[Slices] = field(default_factory=list)
    states: dict[str, Value] = field(default_factory=dict)


class Wanted:
    """What a rank needs of a checkpoint, and where it was found."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._sought = {piece.name: _Sought(piece, sum(box.elements for box in piece.boxes)) for piece in pieces}
        self._left = sum(sought.left > 0 for sought in self._sought.values())
        self.reads: dict[int, tuple[Manifest, list[Read]]] = {}

    @property
    def found(self) -> bool:
        return not self._left

    def look(self, manifest: Manifest) -> None:
        reads: list[Read] = []
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
                raise DamagedError(f"{where}: {sought.left} elements of {name} are in none of its files")

    def states(self) -> States:
        return {name: sought.states for name, sought in self._sought.items() if sought.states}

    def _take(
        self, sought: _Sought, stored: Stored, states: dict[str, Stored], numbers: dict[str, Number]
    ) -> Iterator[Read]:
        piece = sought.piece
        if stored.shape != piece.shape:
            raise DamagedError(f"{piece.name}: saved with shape {stored.shape}, the model has {piece.shape}")
        found = regions(stored, piece.boxes)
        for region in found:
            if any(overlap(region.whole, other) for other in sought.covered):
                raise DamagedError(f"{piece.name}: some of its elements were saved twice")
            sought.covered.append(region.whole)
        sought.left -= sum(region.elements for region in found)
        self._left -= not sought.left
        yield from _reads(stored, piece.local, found)
        if not found:
            return
        for key, number in numbers.items():
            sought.states[key] = _value(number)
        for key, state in states.items():
            alike = state.shape == piece.shape
            boxes = piece.boxes if alike else (Box(everything(state.shape), everything(state.shape)),)
            tensor = sought.states.get(key)
            if not isinstance(tensor, Tensor):
                tensor = sought.states[key] = _room(state, piece, alike)
            yield from _reads(state, tensor, regions(state, boxes))


def _reads(stored: Stored, target: Tensor, found: Sequence[Region]) -> Iterator[Read]:
    by_chunk: dict[int, list[tuple[Tensor, Region]]] = {}
    for region in found:
        by_chunk.setdefault(region.chunk, []).append((target, region))
    for number, targets in by_chunk.items():
        yield Read(stored, stored.chunks[number], targets)


def _states_in(manifest: Manifest) -> dict[str, dict[str, Stored]]:
    found: dict[str, dict[str, Stored]] = {}
    for key, stored in manifest.tensors.items():
        if key.startswith(OPTIMIZER):
            name, _, state = key.removeprefix(OPTIMIZER).rpartition("/")
            found.setdefault(name, {})[state] = stored
    return found


def _value(number: Number) -> Value:
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
        raise DamagedError(f"a number {number.text[:40]!r} of kind {number.kind[:40]!r}") from None


def _room(state: Stored, piece: Piece, alike: bool) -> Tensor:
    """Laid out as the parameter is, since fused kernels walk through both side by side."""
    if alike:
        return torch.zeros_like(piece.local, dtype=DTYPES[state.dtype], requires_grad=False)
    if sum(chunk.elements for chunk in state.chunks) != math.prod(state.shape):  # whole in one manifest, or a lie
        raise DamagedError(f"{piece.name}: its optimizer's state of shape {state.shape} is not all there")
    return torch.zeros(state.shape, dtype=DTYPES[state.dtype], device=piece.local.device)


def everything(shape: Sequence[int]) -> Slices:
    return tuple(slice(0, size) for size in shape)
