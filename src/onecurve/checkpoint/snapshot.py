"""Copies the tensors that this rank saves to host memory: the only part of a save that training waits for."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onecurve.checkpoint.chunk import chunks_to_write, split_into_chunks
from onecurve.checkpoint.hashed_json import digest, dump_hashed
from onecurve.checkpoint.manifest import MODEL, OPTIMIZER, TABLES, Chunk, Manifest, Root, ScalarState, StoredTensor
from onecurve.checkpoint.safetensors_format import DTYPE_NAMES, header_bytes, tensor_bytes
from onecurve.describe.errors import OnecurveError
from onecurve.describe.optimizer_state import FULL_STATE
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor, Value
from onecurve.device.snapshot_memory import SnapshotMemory

OptimizerState = Mapping[str, Mapping[str, Value | None]]
"""Optimizer state to save, by parameter name and state key."""

_CACHE_LINE_BYTES = 64
_HOST_BLOCK_BYTES = 1 << 28


@dataclass(frozen=True)
class SnapshotChunk:
    """One chunk of one tensor, before its position in a file is known."""

    key: str
    """Name of the tensor in the manifest."""
    shape: tuple[int, ...]
    """Shape of the full tensor."""
    offsets: tuple[int, ...]
    """Offsets of the chunk in the full tensor."""
    source: Tensor
    """The chunk's elements in device memory, a view of the live tensor."""


class Snapshot:
    """Host memory for what this rank saves, reused by every save for as long as the tensors stay the same."""

    def __init__(
        self,
        local_tensors: Sequence[LocalTensor],
        optimizer_state: OptimizerState,
        device: Device,
        *,
        shared: bool = False,
    ) -> None:
        """`shared`: use memory that the rank can share with its keeper."""
        _refuse_unsaveable(local_tensors, optimizer_state)
        self._memory_ids = _memory_ids(local_tensors, optimizer_state)
        self._chunks = list(_chunks(local_tensors, optimizer_state))
        self._parameters = {chunk.key.partition("/")[2] for chunk in self._chunks if chunk.key.startswith(MODEL)}
        self._device = device
        sources = [chunk.source for chunk in self._chunks]
        self.memory: SnapshotMemory | None = None
        """The memory that holds the copies, if it is shared."""
        if shared:
            self._begins, nbytes = _layout(sources)
            self.memory = SnapshotMemory.create(nbytes)
            self._copies = _copies_in(device.shared_memory(self.memory.data), sources, self._begins)
        else:
            self._copies = list(_allocate_copies(sources, device))
        self._scalars = ScalarStates({})

    def matches(self, local_tensors: Sequence[LocalTensor], optimizer_state: OptimizerState) -> bool:
        """Return True if this snapshot was built for these tensors.

        Their memory addresses are compared too, because an optimizer may replace the storage of a tensor.
        """
        return _memory_ids(local_tensors, optimizer_state) == self._memory_ids

    def take(self, optimizer_state: OptimizerState) -> None:
        """Copy the current values to host memory, and wait until the copies are complete."""
        if self.memory is not None:
            self.memory.begin()
        with torch.no_grad():
            if self._chunks:
                torch._foreach_copy_(self._copies, [chunk.source for chunk in self._chunks], non_blocking=True)
            self._scalars = ScalarStates(
                {name: optimizer_state[name] for name in optimizer_state if name in self._parameters}
            )
        self._device.wait()

    def seal(self, root: Root, rank: int) -> None:
        """Make the snapshot in shared memory complete: from now on, others can load from it."""
        assert self.memory is not None
        stored: dict[str, list[Chunk]] = {}
        for begin, chunk in zip(self._begins, self._chunks, strict=True):
            # No hash: this memory has one writer, and is not read by a later run.
            stored.setdefault(chunk.key, []).append(Chunk(chunk.offsets, tuple(chunk.source.shape), begin, ""))
        manifest = Manifest(
            token=root.token,
            rank=rank,
            size=len(self.memory.data),
            header_hash=digest(b""),
            tensors=self._stored_tensors(stored),
            numbers=self._scalars.to_manifest(),
        )
        self.memory.complete(root.point.step, dump_hashed(root), dump_hashed(manifest))

    def _stored_tensors(self, stored_chunks: Mapping[str, list[Chunk]]) -> dict[str, StoredTensor]:
        return {
            chunk.key: StoredTensor(DTYPE_NAMES[chunk.source.dtype], chunk.shape, tuple(stored_chunks[chunk.key]))
            for chunk in self._chunks
        }

    def file(self, token: str, rank: int) -> tuple[Manifest, Iterator[bytes | memoryview]]:
        """Return this rank's manifest and the content of its data file, in parts."""
        if not self._chunks:
            return Manifest(token=token, rank=rank, numbers=self._scalars.to_manifest()), iter(())
        # Every chunk is a tensor of the safetensors file, named after its offsets.
        header = header_bytes({_chunk_name(chunk): (chunk.source.dtype, chunk.source.shape) for chunk in self._chunks})
        contents = [tensor_bytes(copy) for copy in self._copies]
        stored_chunks: dict[str, list[Chunk]] = {}
        begin = len(header)
        for content, chunk in zip(contents, self._chunks, strict=True):
            stored = Chunk(chunk.offsets, tuple(chunk.source.shape), begin, digest(content))
            stored_chunks.setdefault(chunk.key, []).append(stored)
            begin += chunk.source.nbytes
        manifest = Manifest(
            token=token,
            rank=rank,
            size=begin,
            header=len(header),
            header_hash=digest(header),
            tensors=self._stored_tensors(stored_chunks),
            numbers=self._scalars.to_manifest(),
        )
        return manifest, itertools.chain([header], contents)


def _layout(tensors: Sequence[Tensor]) -> tuple[list[int], int]:
    """Where the copy of each tensor begins in one piece of memory, at a cache line, and the size of that memory."""
    begins, end = [], 0
    for tensor in tensors:
        begins.append(end)
        end += _rounded(tensor.nbytes)
    return begins, end


def _copies_in(memory: Tensor, tensors: Sequence[Tensor], begins: Sequence[int]) -> list[Tensor]:
    return [
        memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, begin in zip(tensors, begins, strict=True)
    ]


def _rounded(nbytes: int) -> int:
    """As many bytes as the cache lines that these bytes take up: copies that begin at a cache line are faster."""
    return -(-nbytes // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES


def _allocate_copies(tensors: Sequence[Tensor], device: Device) -> Iterator[Tensor]:
    """Allocate a host tensor for each of `tensors`.

    Memory is allocated in large blocks, because PyTorch rounds every allocation of pinned memory up to a power of two.
    """
    blocks: list[list[Tensor]] = []
    free_bytes = 0
    for tensor in tensors:
        size = _rounded(tensor.nbytes)
        if size > free_bytes or not blocks:
            blocks.append([])
            free_bytes = _HOST_BLOCK_BYTES
        blocks[-1].append(tensor)
        free_bytes -= size
    for block in blocks:
        begins, nbytes = _layout(block)
        yield from _copies_in(device.host_memory(nbytes), block, begins)


def _refuse_unsaveable(local_tensors: Sequence[LocalTensor], optimizer_state: OptimizerState) -> None:
    unsharded = {local_tensor.name for local_tensor in local_tensors if local_tensor.local.shape == local_tensor.shape}
    shapes = {local_tensor.name: local_tensor.local.shape for local_tensor in local_tensors}
    for name, state in optimizer_state.items():
        for key, value in state.items():
            what = f"optimizer: state {key!r} of {name}"
            if not isinstance(key, str) or "/" in key:
                raise OnecurveError(f"{what} cannot be saved; its key must be a string without '/'")
            if not isinstance(value, Tensor | bool | int | float) and value is not None:
                raise OnecurveError(f"{what} is a {type(value).__name__}; only tensors and numbers can be saved")
            if not isinstance(value, Tensor):
                continue
            if value.dtype not in DTYPE_NAMES or (value.is_complex() and not value.dim()):
                raise OnecurveError(f"{what} has dtype {value.dtype}, which cannot be saved; use torch.float32 instead")
            is_full = key.startswith(FULL_STATE) or name in unsharded
            if value.dim() and value.shape != shapes.get(name) and not is_full:
                raise OnecurveError(
                    f"{what} has shape {tuple(value.shape)}, unlike its parameter, and cannot be saved while the "
                    "parameter is sharded; use a plan that does not shard parameters, or another optimizer"
                )


def _chunk_name(chunk: SnapshotChunk) -> str:
    return f"{chunk.key}@{','.join(map(str, chunk.offsets))}"


def _memory_ids(local_tensors: Sequence[LocalTensor], optimizer_state: OptimizerState) -> list[tuple[int, int]]:
    """Return the identity and the address of every tensor to save; equal lists mean the same elements in memory."""
    values = (value for state in optimizer_state.values() for value in state.values())
    states = (value for value in values if isinstance(value, Tensor) and value.dim())
    tensors = [*(local_tensor.local for local_tensor in local_tensors if local_tensor.boxes), *states]
    return [(id(tensor), tensor.data_ptr()) for tensor in tensors]


def _chunks(local_tensors: Sequence[LocalTensor], optimizer_state: OptimizerState) -> Iterator[SnapshotChunk]:
    for local_tensor in local_tensors:
        prefix = TABLES if local_tensor.of_table else MODEL
        model_key, state_prefix = f"{prefix}{local_tensor.name}", f"{OPTIMIZER}{local_tensor.name}/"
        local, shape = local_tensor.local.detach(), local_tensor.shape
        chunks = list(chunks_to_write(local_tensor))
        state = optimizer_state.get(local_tensor.name, {})
        tensors = {key: value.detach() for key, value in state.items() if isinstance(value, Tensor) and value.dim()}
        same_shape = {key: tensor for key, tensor in tensors.items() if tensor.shape == local.shape}
        for in_full, in_local in chunks:
            offsets = tuple(side.start for side in in_full)
            yield SnapshotChunk(model_key, shape, offsets, local[in_local])
            for key, tensor in same_shape.items():
                yield SnapshotChunk(state_prefix + key, shape, offsets, tensor[in_local])
        if chunks and not any(side.start for side in chunks[0][0]):  # the rank that writes the parameter's first chunk
            for key, tensor in tensors.items():
                if key not in same_shape:
                    yield from _full_tensor_chunks(state_prefix + key, tensor)


def _full_tensor_chunks(key: str, tensor: Tensor) -> Iterator[SnapshotChunk]:
    for offsets, sizes in split_into_chunks(tensor.shape):
        slices = tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))
        yield SnapshotChunk(key, tuple(tensor.shape), offsets, tensor[slices])


class ScalarStates:
    """The numbers and zero-dimensional tensors of optimizer state, which are stored in the manifest, not in chunks.

    Tensors of the same dtype and device are copied to the host together.
    """

    def __init__(self, optimizer_state: OptimizerState) -> None:
        self._numbers = [
            (name, key, value)
            for name, state in optimizer_state.items()
            for key, value in state.items()
            if isinstance(value, bool | int | float)
        ]
        groups: dict[tuple[torch.dtype, torch.device], list[tuple[str, str, Tensor]]] = {}
        for name, state in optimizer_state.items():
            for key, value in state.items():
                if isinstance(value, Tensor) and not value.dim():
                    groups.setdefault((value.dtype, value.device), []).append((name, key, value))
        self._tensors = [
            (
                DTYPE_NAMES[dtype],
                [(name, key) for name, key, _ in group],
                torch.stack([value for _, _, value in group]).cpu(),
            )
            for (dtype, _), group in groups.items()
        ]

    def to_manifest(self) -> dict[str, dict[str, ScalarState]]:
        """Return the values as text, by parameter name and state key."""
        scalars: dict[str, dict[str, ScalarState]] = {}
        for name, key, value in self._numbers:
            # Subclasses, such as numpy.float64, are saved as the Python type.
            kind = next(number_type for number_type in (bool, int, float) if isinstance(value, number_type))
            scalars.setdefault(name, {})[key] = ScalarState(kind.__name__, repr(kind(value)))
        for dtype, names, values in self._tensors:
            for (name, key), value in zip(names, values.tolist(), strict=True):
                scalars.setdefault(name, {})[key] = ScalarState(dtype, repr(value))
        return scalars
