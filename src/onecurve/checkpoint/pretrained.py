"""Weights to start from: a safetensors file or a Hugging Face folder, read tensor by tensor, each rank its own part."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from onecurve.describe.convert import from_json
from onecurve.describe.errors import OnecurveError
from onecurve.device.local_tensor import LocalTensor

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_LARGEST_INDEX = 1 << 26


def load_weights(path: Path, local_tensors: Sequence[LocalTensor], aliases: Mapping[str, str]) -> str:
    """Fill the pieces; returns what a person should know, or nothing. `aliases`: every name of a tensor → its first."""
    wanted = {local_tensor.name: local_tensor for local_tensor in local_tensors}
    left, strange = set(wanted), []
    with ExitStack() as stack:
        for file in _files(path):
            opened = stack.enter_context(_open(file))
            for name in opened.keys():  # noqa: SIM118
                known = aliases.get(name)
                if known not in wanted:
                    strange.append(name)
                    continue
                assert known is not None
                _fill(wanted[known], opened, name, file)
                left.discard(known)
    if len(left) == len(wanted):
        raise OnecurveError(
            f"{path}: none of its tensors has a name of the model's (it has {', '.join(strange[:3])}, the model has "
            f"{', '.join(list(wanted)[:3])})"
        )
    told = []
    if left:
        told.append(f"not in {path}, so as the constructor made them: {_some(sorted(left))}")
    if strange:
        told.append(f"in {path}, but not in the model: {_some(sorted(strange))}")
    return "; ".join(told)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield _refuse_elsewhere(path, path.parent)
        return
    index = path / _INDEX
    if not index.exists():
        if not (path / _SINGLE).exists():
            raise OnecurveError(f"{path}: neither {_SINGLE} nor {_INDEX} is in it; only safetensors are read")
        yield _refuse_elsewhere(path / _SINGLE, path)
        return
    for name in dict.fromkeys(_weight_map(_refuse_elsewhere(index, path)).values()):
        if name != os.path.basename(name) or "\0" in name or name in ("", ".", ".."):
            raise OnecurveError(f"{index}: it names {name[:80]!r}, which is not a file beside it")
        yield _refuse_elsewhere(path / name, path)


def _weight_map(index: Path) -> dict[str, str]:
    if index.stat().st_size > _LARGEST_INDEX:
        raise OnecurveError(f"{index}: {index.stat().st_size} bytes, more than any index has")
    plain = from_json(dict[str, Any], index.read_bytes(), str(index))
    found = plain.get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise OnecurveError(f"{index}: it has no 'weight_map' of tensors' names to files' names")
    return found


def _refuse_elsewhere(file: Path, folder: Path) -> Path:
    """Links lead within the folder, or from a snapshot of Hugging Face's cache to its blobs."""
    try:
        real, home = file.resolve(strict=True), folder.resolve()
        regular = stat.S_ISREG(real.stat().st_mode)
    except (OSError, ValueError) as error:
        raise OnecurveError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not regular:
        raise OnecurveError(f"{file}: not a file")
    cache = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if file.is_symlink() and not (real.is_relative_to(home) or real.is_relative_to(cache)):
        raise OnecurveError(f"{file}: a link that leads out of {folder}; copy the file there")
    return file


def _open(file: Path) -> Any:
    try:
        return safe_open(str(file), framework="pt")
    except (SafetensorError, OSError) as error:
        raise OnecurveError(f"{file}: not a whole safetensors file ({error})") from None


def _fill(local_tensor: LocalTensor, opened: Any, name: str, file: Path) -> None:
    found = opened.get_slice(name)
    shape = tuple(found.get_shape())
    if shape != local_tensor.shape:
        raise OnecurveError(
            f"{file}: {name} has shape {shape}, the model's {local_tensor.name} has {local_tensor.shape}"
        )
    with torch.no_grad():
        for box in local_tensor.boxes:
            if box.elements:
                part = found[box.whole] if shape else opened.get_tensor(name)
                local_tensor.local[box.local].copy_(part)
