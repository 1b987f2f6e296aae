"""A copy in host memory of what this rank writes: the only part of a save that a step waits for."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onecurve.checkpoint.chunk import cut, own_chunks
from onecurve.checkpoint.format import NAMES, header, raw
from onecurve.checkpoint.manifest import MODEL, OPTIMIZER, Chunk, Manifest, Number, Stored
from onecurve.checkpoint.seal import digest
from onecurve.describe.errors import OnecurveError
from onecurve.device.device import Device
from onecurve.device.piece import Piece

Value = Tensor | bool | int | float
Kept = Mapping[str, Mapping[str, Value | None]]
"""By parameter: what its optimizer keeps of it."""

_LINE = 64


@dataclass(frozen=True)
class Part:
    """One chunk of one tensor, before it has a place in a file."""

    key: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    source: Tensor


class Snapshot:
    """Made once and taken again and again, as long as it is asked for the same tensors."""

    def __init__(self, pieces: Sequence[Piece], kept: Kept, device: Device) -> None:
        _refuse_other_kinds(kept)
        self._of = _tensors(pieces, kept)
        self._parts = list(_parts(pieces, kept))
        for part in self._parts:
            if part.source.dtype not in NAMES:
                raise OnecurveError(f"{part.key}: is of type {part.source.dtype}, which safetensors cannot hold")
        self._writes = {part.key.partition("/")[2] for part in self._parts if part.key.startswith(MODEL)}
        self._device = device
        ends = list(itertools.accumulate(_aligned(part.source.nbytes) for part in self._parts))
        self._memory = device.host_memory(ends[-1] if ends else 0)
        self._places = [slice(b, b + part.source.nbytes) for b, part in zip([0, *ends], self._parts, strict=False)]
        self._copies = [
            self._memory[place].view(part.source.dtype).view(part.source.shape)
            for place, part in zip(self._places, self._parts, strict=True)
        ]
        self._numbers = Numbers({})

    def is_of(self, pieces: Sequence[Piece], kept: Kept) -> bool:
        now = _tensors(pieces, kept)
        return len(now) == len(self._of) and all(a is b for a, b in zip(now, self._of, strict=True))

    def take(self, kept: Kept) -> None:
        with torch.no_grad():
            if self._parts:
                torch._foreach_copy_(self._copies, [part.source for part in self._parts], non_blocking=True)
            self._numbers = Numbers({name: kept[name] for name in kept if name in self._writes})
        self._device.wait()

    def file(self, token: str, rank: int) -> tuple[Manifest, Iterator[bytes | memoryview]]:
        """The manifest, and the data file's parts in order."""
        if not self._parts:
            return Manifest(token, rank, numbers=self._numbers.nouns()), iter(())
        # Every chunk is a tensor of that file, named after where it begins.
        first = header({_label(part): (part.source.dtype, part.source.shape) for part in self._parts})
        content = raw(self._memory)
        chunks: dict[str, list[Chunk]] = {}
        begin = len(first)
        for place, part in zip(self._places, self._parts, strict=True):
            chunk = Chunk(part.offsets, tuple(part.source.shape), begin, digest(content[place]))
            chunks.setdefault(part.key, []).append(chunk)
            begin += part.source.nbytes
        tensors = {
            part.key: Stored(NAMES[part.source.dtype], part.shape, tuple(chunks[part.key])) for part in self._parts
        }
        manifest = Manifest(token, rank, begin, len(first), digest(first), tensors, self._numbers.nouns())
        return manifest, itertools.chain([first], (content[place] for place in self._places))


def _aligned(nbytes: int) -> int:
    """Copies to addresses that begin a cache line are faster."""
    return -(-nbytes // _LINE) * _LINE


def _refuse_other_kinds(kept: Kept) -> None:
    for state in kept.values():
        for key, value in state.items():
            if not isinstance(value, Tensor | bool | int | float) and value is not None:
                raise OnecurveError(
                    f"optimizer: its state {key!r} is a {type(value).__name__}; tensors and numbers can be saved"
                )


def _label(part: Part) -> str:
    return f"{part.key}@{','.join(map(str, part.offsets))}"


def _tensors(pieces: Sequence[Piece], kept: Kept) -> list[Tensor]:
    """Whose identity says whether two snapshots are of the same."""
    states = (value for state in kept.values() for value in state.values() if isinstance(value, Tensor) and value.dim())
    return [*(piece.local for piece in pieces), *states]


def _parts(pieces: Sequence[Piece], kept: Kept) -> Iterator[Part]:
    for piece in pieces:
        chunks = list(own_chunks(piece))
        states = {key: value for key, value in kept.get(piece.name, {}).items() if isinstance(value, Tensor)}
        alike = {key: value for key, value in states.items() if value.shape == piece.local.shape and value.dim()}
        for whole, local in chunks:
            offsets = tuple(side.start for side in whole)
            yield Part(f"{MODEL}{piece.name}", piece.shape, offsets, piece.local.detach()[local])
            for key, value in alike.items():
                yield Part(f"{OPTIMIZER}{piece.name}/{key}", piece.shape, offsets, value.detach()[local])
        if chunks and not any(side.start for side in chunks[0][0]):  # whoever writes the first chunk
            for key, value in states.items():
                if key not in alike and value.dim():  # of a shape of its own: never where parameters are cut
                    yield from _whole(f"{OPTIMIZER}{piece.name}/{key}", value)


def _whole(key: str, tensor: Tensor) -> Iterator[Part]:
    for offsets, sizes in cut(tensor.shape):
        slices = tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))
        yield Part(key, tuple(tensor.shape), offsets, tensor.detach()[slices])


class Numbers:
    """What of an optimizer's state is too small for a chunk. Tensors of one element are copied together."""

    def __init__(self, kept: Kept) -> None:
        self._plain = [
            (name, key, value)
            for name, state in kept.items()
            for key, value in state.items()
            if isinstance(value, bool | int | float)
        ]
        single: dict[tuple[torch.dtype, torch.device], list[tuple[str, str, Tensor]]] = {}
        for name, state in kept.items():
            for key, value in state.items():
                if isinstance(value, Tensor) and not value.dim():
                    single.setdefault((value.dtype, value.device), []).append((name, key, value))
        self._single = [
            (NAMES[dtype], [(name, key) for name, key, _ in each], torch.stack([value for _, _, value in each]).cpu())
            for (dtype, _), each in single.items()
        ]

    def nouns(self) -> dict[str, dict[str, Number]]:
        found: dict[str, dict[str, Number]] = {}
        for name, key, value in self._plain:
            found.setdefault(name, {})[key] = Number(type(value).__name__, repr(value))
        for kind, places, values in self._single:
            for (name, key), value in zip(places, values.tolist(), strict=True):
                found.setdefault(name, {})[key] = Number(kind, repr(value))
        return found
