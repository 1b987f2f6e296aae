"""The safetensors file format, written tensor by tensor; the library itself needs all tensors in memory at once."""

import json
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

DTYPE_NAMES = {
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
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


def header_bytes(
    tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return the header of a file whose elements follow in the order of `tensors`, without gaps."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    begin = 0
    for name, (dtype, shape) in tensors.items():
        end = begin + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def tensor_bytes(tensor: Tensor) -> bytes | memoryview:
    """Return the elements in host memory, in its byte order; the format requires little-endian."""
    flat = tensor.detach().contiguous().to("cpu").flatten()
    return flat.view(torch.uint8).numpy().data if flat.numel() else b""
