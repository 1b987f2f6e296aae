"""Writes the model of a checkpoint to safetensors files for other programs, one full tensor in memory at a time."""

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.manifest import MODEL, OPTIMIZER, Manifest, StoredTensor
from onecurve.checkpoint.safetensors_format import DTYPES, header_bytes, tensor_bytes
from onecurve.describe.optimizer_state import AVERAGE
from onecurve.device.files import replace_file

_MAX_FILE_BYTES = 5 * 10**9
_COPY_BUFFER_BYTES = 1 << 24
_METADATA = {"format": "pt"}
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class LazyTensor:
    """A tensor of known dtype and shape whose elements are loaded by `read`, on every call."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


TransformTensor = Callable[[str, Tensor], tuple[Mapping[str, Tensor], Mapping[str, str]]]
"""Maps a tensor's name and value to the tensors to write in its place and the metadata entries that describe them."""


def lazy_tensors_of(checkpoint: Checkpoint) -> dict[str, LazyTensor]:
    """Return every parameter and buffer of the checkpoint by name; of parameters that were averaged, the averages."""

    def lazy(key: str, parts: Sequence[tuple[Manifest, StoredTensor]]) -> LazyTensor:
        stored = parts[0][1]
        return LazyTensor(DTYPES[stored.dtype], stored.shape, lambda: checkpoint.full_tensor(key, parts))

    tensors = checkpoint.tensors()
    names = [key.removeprefix(MODEL) for key in tensors if key.startswith(MODEL)]
    averages = {name: f"{OPTIMIZER}{name}/{AVERAGE}" for name in names}
    keys = {name: key if (key := averages[name]) in tensors else f"{MODEL}{name}" for name in names}
    return {name: lazy(key, tensors[key]) for name, key in keys.items()}


def write_one(tensors: Mapping[str, LazyTensor], path: Path) -> None:
    """Write all tensors to one safetensors file."""
    replace_file(path, _file_parts(tensors))


def write_many(tensors: Mapping[str, LazyTensor], folder: Path) -> None:
    """Write the tensors in Hugging Face's layout: files of at most 5 GB, with an index if there is more than one."""
    groups = _split_by_size(tensors)
    if len(groups) == 1:
        write_one(tensors, folder / "model.safetensors")
        return
    index: dict[str, str] = {}
    for number, group in enumerate(groups):
        name = f"model-{number + 1:05d}-of-{len(groups):05d}.safetensors"
        write_one(group, folder / name)
        index |= dict.fromkeys(group, name)
    total = sum(lazy.nbytes for lazy in tensors.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2, sort_keys=True)
    replace_file(folder / INDEX, [text.encode()])


def write_transformed(
    tensors: Mapping[str, LazyTensor], transform: TransformTensor, metadata: Mapping[str, str], path: Path
) -> None:
    """Write the results of `transform` for every tensor to one file; `metadata` describes the file as a whole.

    The header precedes the elements but is known only after the last tensor, so the elements go to a temporary file
    first.
    """
    entries: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    all_metadata: dict[str, str] = {**_METADATA, **metadata}
    body = path.with_name(f".{path.name}.body")
    try:
        with body.open("w+b") as file:
            for source_name, lazy in tensors.items():
                transformed, tensor_metadata = transform(source_name, lazy.read())
                all_metadata |= tensor_metadata
                for name, tensor in transformed.items():
                    entries[name] = tensor.dtype, tuple(tensor.shape)
                    file.write(tensor_bytes(tensor))
            file.seek(0)
            replace_file(path, itertools.chain([header_bytes(entries, all_metadata)], _stream(file)))
    finally:
        body.unlink(missing_ok=True)


def _split_by_size(tensors: Mapping[str, LazyTensor], limit: int = _MAX_FILE_BYTES) -> list[dict[str, LazyTensor]]:
    groups: list[dict[str, LazyTensor]] = [{}]
    size = 0
    for name, lazy in tensors.items():
        if groups[-1] and size + lazy.nbytes > limit:
            groups.append({})
            size = 0
        groups[-1][name] = lazy
        size += lazy.nbytes
    return groups


def _file_parts(tensors: Mapping[str, LazyTensor]) -> Iterator[bytes | memoryview]:
    yield header_bytes({name: (lazy.dtype, lazy.shape) for name, lazy in tensors.items()}, _METADATA)
    for lazy in tensors.values():
        yield tensor_bytes(lazy.read())


def _stream(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(_COPY_BUFFER_BYTES):
        yield part
