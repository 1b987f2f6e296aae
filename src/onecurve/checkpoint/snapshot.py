"""A copy in host memory of what this rank writes: the only part of a save that a step waits for."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onecurve.checkpoint.chunk import cut, own_chunks
from onecurve.checkpoint.hashed_json import digest
from onecurve.checkpoint.manifest import MODEL, OPTIMIZER, Chunk, Manifest, ScalarState, StoredTensor
from onecurve.checkpoint.safetensors_format import NAMES, header, raw
from onecurve.describe.errors import OnecurveError
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor, Value

OptimizerState = Mapping[str, Mapping[str, Value | None]]
"""By parameter: what its optimizer keeps of it."""

_LINE = 64
_BLOCK = 1 << 28


@dataclass(frozen=True)
class SnapshotChunk:
    """One chunk of one tensor, before it has a place in a file."""

    key: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    source: Tensor


class Snapshot:
    """Made once and taken again and again, as long as it is asked for the same tensors."""

    def __init__(self, local_tensors: Sequence[LocalTensor], kept: OptimizerState, device: Device) -> None:
        _refuse_unsaveable(local_tensors, kept)
        self._of = _marks(local_tensors, kept)
        self._parts = list(_parts(local_tensors, kept))
        self._writes = {part.key.partition("/")[2] for part in self._parts if part.key.startswith(MODEL)}
        self._device = device
        self._copies = list(_places([part.source for part in self._parts], device))
        self._numbers = ScalarStates({})

    def is_of(self, local_tensors: Sequence[LocalTensor], kept: OptimizerState) -> bool:
        """Not only by identity: an optimizer may put other memory into a tensor."""
        return _marks(local_tensors, kept) == self._of

    def take(self, kept: OptimizerState) -> None:
        with torch.no_grad():
            if self._parts:
                torch._foreach_copy_(self._copies, [part.source for part in self._parts], non_blocking=True)
            self._numbers = ScalarStates({name: kept[name] for name in kept if name in self._writes})
        self._device.wait()

    def file(self, token: str, rank: int) -> tuple[Manifest, Iterator[bytes | memoryview]]:
        """The manifest, and the data file's parts in order."""
        if not self._parts:
            return Manifest(token, rank, numbers=self._numbers.nouns()), iter(())
        # Every chunk is a tensor of that file, named after where it begins.
        first = header({_label(part): (part.source.dtype, part.source.shape) for part in self._parts})
        contents = [raw(copy) for copy in self._copies]
        chunks: dict[str, list[Chunk]] = {}
        begin = len(first)
        for content, part in zip(contents, self._parts, strict=True):
            chunk = Chunk(part.offsets, tuple(part.source.shape), begin, digest(content))
            chunks.setdefault(part.key, []).append(chunk)
            begin += part.source.nbytes
        tensors = {
            part.key: StoredTensor(NAMES[part.source.dtype], part.shape, tuple(chunks[part.key]))
            for part in self._parts
        }
        manifest = Manifest(token, rank, begin, len(first), digest(first), tensors, self._numbers.nouns())
        return manifest, itertools.chain([first], contents)


def _places(tensors: Sequence[Tensor], device: Device) -> Iterator[Tensor]:
    """Host memory for each. Copies to addresses that begin a cache line are faster; and torch rounds pinned memory up
    to a power of two, so it is taken in blocks."""
    sizes = [-(-tensor.nbytes // _LINE) * _LINE for tensor in tensors]
    blocks: list[list[int]] = []
    room = 0
    for number, size in enumerate(sizes):
        if size > room or not blocks:
            blocks.append([])
            room = _BLOCK
        blocks[-1].append(number)
        room -= size
    for block in blocks:
        memory = device.host_memory(sum(sizes[number] for number in block))
        begin = 0
        for number in block:
            tensor = tensors[number]
            yield memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            begin += sizes[number]


def _refuse_unsaveable(local_tensors: Sequence[LocalTensor], kept: OptimizerState) -> None:
    whole = {local_tensor.name for local_tensor in local_tensors if local_tensor.local.shape == local_tensor.shape}
    shapes = {local_tensor.name: local_tensor.local.shape for local_tensor in local_tensors}
    for name, state in kept.items():
        for key, value in state.items():
            what = f"optimizer: its state {key!r} of {name}"
            if not isinstance(key, str) or "/" in key:
                raise OnecurveError(f"{what} has a key that cannot be saved; a text without '/' is needed")
            if not isinstance(value, Tensor | bool | int | float) and value is not None:
                raise OnecurveError(f"{what} is a {type(value).__name__}; tensors and numbers can be saved")
            if isinstance(value, Tensor) and (value.dtype not in NAMES or (value.is_complex() and not value.dim())):
                raise OnecurveError(f"{what} is of type {value.dtype}, which cannot be saved")
            own_shape = isinstance(value, Tensor) and value.dim() and value.shape != shapes.get(name)
            if own_shape and name not in whole:
                raise OnecurveError(f"{what} has a shape of its own, on ranks that hold a part of the parameter")


def _label(part: SnapshotChunk) -> str:
    return f"{part.key}@{','.join(map(str, part.offsets))}"


def _marks(local_tensors: Sequence[LocalTensor], kept: OptimizerState) -> list[tuple[int, int]]:
    """Two snapshots with the same are of the same elements."""
    states = (value for state in kept.values() for value in state.values() if isinstance(value, Tensor) and value.dim())
    tensors = [*(local_tensor.local for local_tensor in local_tensors if local_tensor.boxes), *states]
    return [(id(tensor), tensor.data_ptr()) for tensor in tensors]


def _parts(local_tensors: Sequence[LocalTensor], kept: OptimizerState) -> Iterator[SnapshotChunk]:
    for local_tensor in local_tensors:
        chunks = list(own_chunks(local_tensor))
        states = {key: value for key, value in kept.get(local_tensor.name, {}).items() if isinstance(value, Tensor)}
        alike = {key: value for key, value in states.items() if value.shape == local_tensor.local.shape and value.dim()}
        for whole, local in chunks:
            offsets = tuple(side.start for side in whole)
            yield SnapshotChunk(
                f"{MODEL}{local_tensor.name}", local_tensor.shape, offsets, local_tensor.local.detach()[local]
            )
            for key, value in alike.items():
                yield SnapshotChunk(
                    f"{OPTIMIZER}{local_tensor.name}/{key}", local_tensor.shape, offsets, value.detach()[local]
                )
        if chunks and not any(side.start for side in chunks[0][0]):  # whoever writes the first chunk
            for key, value in states.items():
                if key not in alike and value.dim():  # of a shape of its own: never where parameters are cut
                    yield from _whole(f"{OPTIMIZER}{local_tensor.name}/{key}", value)


def _whole(key: str, tensor: Tensor) -> Iterator[SnapshotChunk]:
    for offsets, sizes in cut(tensor.shape):
        slices = tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))
        yield SnapshotChunk(key, tuple(tensor.shape), offsets, tensor.detach()[slices])


class ScalarStates:
    """What of an optimizer's state is too small for a chunk. Tensors of one element are copied together."""

    def __init__(self, kept: OptimizerState) -> None:
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

    def nouns(self) -> dict[str, dict[str, ScalarState]]:
        found: dict[str, dict[str, ScalarState]] = {}
        for name, key, value in self._plain:
            kind = next(each for each in (bool, int, float) if isinstance(value, each))  # also of numpy's
            found.setdefault(name, {})[key] = ScalarState(kind.__name__, repr(kind(value)))
        for dtype, places, values in self._single:
            for (name, key), value in zip(places, values.tolist(), strict=True):
                found.setdefault(name, {})[key] = ScalarState(dtype, repr(value))
        return found
