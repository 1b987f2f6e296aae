"""Loads pretrained weights from a safetensors file or a Hugging Face folder; each rank reads only its own elements."""

import os
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError, safe_open

from onecurve.describe.convert import from_json
from onecurve.describe.errors import OnecurveError
from onecurve.device.local_tensor import LocalTensor

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_MAX_INDEX_BYTES = 1 << 26
_MAX_LISTED_NAMES = 5
_SAMPLES, _SAMPLE_BYTES = 64, 1 << 14


def load_weights(
    path: Path,
    local_tensors: Sequence[LocalTensor],
    names: Mapping[str, Sequence[str]],
    may_be_missing: Collection[str] = (),
) -> str:
    """Fill the local tensors from `path`; return a message that names the tensors without a match, or "".

    `names`: every name that a stored tensor may have → the names of the tensors that it fills. A tied weight may be
    stored under any of its names. `may_be_missing`: tensors that the file need not have.
    """
    by_name = {local_tensor.name: local_tensor for local_tensor in local_tensors}
    missing, unknown = set(by_name), []
    with ExitStack() as stack:
        for file in _files(path):
            opened = stack.enter_context(_open(file))
            for stored_name in opened.keys():  # noqa: SIM118
                filled = set(names.get(stored_name, ())) & set(by_name)
                if not filled:
                    unknown.append(stored_name)
                for name in filled:
                    _fill(by_name[name], opened, stored_name, file)
                    missing.discard(name)
    if len(missing) == len(by_name):
        raise OnecurveError(
            f"{path}: no tensor name matches the model's (it has {', '.join(unknown[:3])}; the model has "
            f"{', '.join(list(by_name)[:3])}); rename its tensors to the model's names"
        )
    messages = []
    if missing := missing - set(may_be_missing):
        messages.append(f"not in {path}, so initialized by the model's constructor: {_list_names(sorted(missing))}")
    if unknown:
        messages.append(f"in {path} but not in the model, so ignored: {_list_names(sorted(unknown))}")
    return "; ".join(messages)


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED_NAMES} more" if len(names) > _MAX_LISTED_NAMES else ""
    return ", ".join(names[:_MAX_LISTED_NAMES]) + more


def weights_digest(path: Path) -> str:
    """A digest of samples of all files with weights, which differs for other weights in practice."""
    digest = xxhash.xxh3_64()
    for file in _files(path):
        size = file.stat().st_size
        with file.open("rb") as opened:
            for number in range(_SAMPLES):
                opened.seek(max(0, size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                digest.update(opened.read(_SAMPLE_BYTES))
        digest.update(str(size).encode())
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield _refuse_outside(path, path.parent)
        return
    index = path / _INDEX
    if not index.exists():
        if not (path / _SINGLE).exists():
            raise OnecurveError(
                f"{path}: contains neither {_SINGLE} nor {_INDEX}; convert the weights to safetensors, the only format "
                "that is read"
            )
        yield _refuse_outside(path / _SINGLE, path)
        return
    for name in dict.fromkeys(_weight_map(_refuse_outside(index, path)).values()):
        if name != os.path.basename(name) or "\0" in name or name in ("", ".", ".."):
            raise OnecurveError(
                f"{index}: 'weight_map' has {name[:80]!r}, must be the name of a file in the same folder"
            )
        yield _refuse_outside(path / name, path)


def _weight_map(index: Path) -> dict[str, str]:
    size = index.stat().st_size
    if size > _MAX_INDEX_BYTES:
        raise OnecurveError(f"{index}: {size} bytes, must be at most {_MAX_INDEX_BYTES}")
    content = from_json(dict[str, Any], index.read_bytes(), str(index))
    weight_map = content.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise OnecurveError(f"{index}: must contain 'weight_map', a table from tensor names to file names")
    return weight_map


def _refuse_outside(file: Path, folder: Path) -> Path:
    """Return `file` if it is a regular file inside `folder` once symbolic links are resolved, else raise.

    Links from a snapshot of Hugging Face's cache to the blobs of the same cache are allowed too.
    """
    try:
        target, home = file.resolve(strict=True), folder.resolve()
        regular = stat.S_ISREG(target.stat().st_mode)
    except (OSError, ValueError) as error:
        raise OnecurveError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not regular:
        raise OnecurveError(f"{file}: not a regular file")
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if file.is_symlink() and not (target.is_relative_to(home) or target.is_relative_to(blobs)):
        raise OnecurveError(f"{file}: symbolic link to a file outside {folder}; copy the file into the folder")
    return file


def _open(file: Path) -> Any:
    try:
        return safe_open(str(file), framework="pt")
    except (SafetensorError, OSError) as error:
        raise OnecurveError(f"{file}: not a complete safetensors file ({error})") from None


def _fill(local_tensor: LocalTensor, opened: Any, stored_name: str, file: Path) -> None:
    stored = opened.get_slice(stored_name)
    shape = tuple(stored.get_shape())
    if shape != local_tensor.shape:
        raise OnecurveError(
            f"{file}: {stored_name} has shape {shape}, but {local_tensor.name} of the model has shape "
            f"{local_tensor.shape}"
        )
    with torch.no_grad():
        for box in local_tensor.boxes:
            if box.elements:
                elements = stored[box.full] if shape else opened.get_tensor(stored_name)
                local_tensor.local[box.local].copy_(elements)
