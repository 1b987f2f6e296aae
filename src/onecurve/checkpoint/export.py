"""The model in a checkpoint as files that others read, tensor by tensor: no more than one whole tensor is ever held."""

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
from onecurve.checkpoint.manifest import MODEL
from onecurve.checkpoint.safetensors_format import DTYPES, header, raw
from onecurve.device.files import replace_file

_FILE_BYTES = 5 * 10**9
_COPIED_AT_ONCE = 1 << 24
_METADATA = {"format": "pt"}
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is read when it is asked for."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    read: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


Change = Callable[[str, Tensor], tuple[Mapping[str, Tensor], Mapping[str, str]]]
"""A tensor as others, and what is to be known of them."""


def model_of(checkpoint: Checkpoint) -> dict[str, LazyTensor]:
    """Every parameter and buffer by name."""

    def lazy(key: str, parts: Sequence) -> LazyTensor:  # type: ignore[type-arg]
        stored = parts[0][1]
        return LazyTensor(DTYPES[stored.dtype], stored.shape, lambda: checkpoint.whole(key, parts))

    stored = checkpoint.tensors()
    return {key.removeprefix(MODEL): lazy(key, parts) for key, parts in stored.items() if key.startswith(MODEL)}


def write_one(tensors: Mapping[str, LazyTensor], path: Path) -> None:
    replace_file(path, _parts(tensors))


def write_many(tensors: Mapping[str, LazyTensor], folder: Path) -> None:
    """As Hugging Face lays them out: files of some gigabytes, and an index where there are several."""
    groups = _groups(tensors)
    if len(groups) == 1:
        write_one(tensors, folder / "model.safetensors")
        return
    index: dict[str, str] = {}
    for number, group in enumerate(groups):
        name = f"model-{number + 1:05d}-of-{len(groups):05d}.safetensors"
        write_one(group, folder / name)
        index |= dict.fromkeys(group, name)
    total = sum(each.nbytes for each in tensors.values())
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=2, sort_keys=True)
    replace_file(folder / INDEX, [text.encode()])


def write_changed(tensors: Mapping[str, LazyTensor], change: Change, facts: Mapping[str, str], path: Path) -> None:
    """Each tensor as what `change` makes of it. What that will be is not known before, so the elements go first.
    `facts`: of all of them together."""
    entries: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    told: dict[str, str] = {**_METADATA, **facts}
    body = path.with_name(f".{path.name}.body")
    try:
        with body.open("w+b") as file:
            for name, lazy in tensors.items():
                made, own = change(name, lazy.read())
                told |= own
                for each, tensor in made.items():
                    entries[each] = tensor.dtype, tuple(tensor.shape)
                    file.write(raw(tensor))
            file.seek(0)
            replace_file(path, itertools.chain([header(entries, told)], _stream(file)))
    finally:
        body.unlink(missing_ok=True)


def _groups(tensors: Mapping[str, LazyTensor], limit: int = _FILE_BYTES) -> list[dict[str, LazyTensor]]:
    groups: list[dict[str, LazyTensor]] = [{}]
    size = 0
    for name, lazy in tensors.items():
        if groups[-1] and size + lazy.nbytes > limit:
            groups.append({})
            size = 0
        groups[-1][name] = lazy
        size += lazy.nbytes
    return groups


def _parts(tensors: Mapping[str, LazyTensor]) -> Iterator[bytes | memoryview]:
    yield header({name: (lazy.dtype, lazy.shape) for name, lazy in tensors.items()}, _METADATA)
    for lazy in tensors.values():
        yield raw(lazy.read())


def _stream(file: BinaryIO) -> Iterator[bytes]:
    while part := file.read(_COPIED_AT_ONCE):
        yield part
