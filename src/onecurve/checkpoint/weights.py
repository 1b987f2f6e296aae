"""Writes a model's weights as one safetensors file, tensor by tensor: no more than one whole tensor is ever held."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.device.piece import Piece

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def save_weights(pieces: Sequence[Piece], path: Path, *, writer: bool) -> None:
    """Every rank that holds a part must call this; the `writer` alone touches the disk.

    Tied tensors are written once, under their first name, as safetensors' own `load_model` expects.
    """
    if not writer:
        for piece in pieces:
            piece.gather()
        return
    staging = path.with_name(f".{path.name}.part")
    with staging.open("wb") as file:
        file.write(_header(pieces))
        for piece in pieces:
            file.write(_bytes(piece.gather()))
        file.flush()
        os.fsync(file.fileno())
    staging.replace(path)
    _sync_folder(path.parent)


def refuse_unsaveable(pieces: Sequence[Piece]) -> None:
    """Say before training, not after, that a tensor has a type the file format does not know."""
    for piece in pieces:
        if piece.whole.dtype not in _NAMES:
            raise OnecurveError(
                f"model: {piece.name} is of type {piece.whole.dtype}, which safetensors cannot hold; keep it in "
                "another type, or register it with persistent=False if it need not be saved"
            )


def _header(pieces: Sequence[Piece]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for piece in pieces:
        size = piece.whole.numel() * piece.whole.element_size()
        entries[piece.name] = {
            "dtype": _NAMES[piece.whole.dtype],
            "shape": list(piece.shape),
            "data_offsets": [begin, begin + size],
        }
        begin += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bytes(tensor: Tensor) -> bytes | memoryview:
    """The elements in host memory, little-endian as the machines we run on."""
    flat = tensor.contiguous().to("cpu").flatten()
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""


def _sync_folder(folder: Path) -> None:
    """A rename is on the disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
