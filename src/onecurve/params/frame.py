"""How messages about rows travel: frames of a header, the messages, and the bytes of their tensors.

A frame begins with 16 bytes: `ocr1`, the length of the messages (4 bytes) and that of the tensors (8 bytes), little
endian. The messages are MessagePack: pairs of a name and the fields. A tensor in them is an extension that says its
type, shape and where its bytes are. Nothing is executed to read a frame, and none is read that is longer than allowed.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.params import messages
from onecurve.params.messages import Message

HEADER_BYTES = 16
MAX_MESSAGES_BYTES = 1 << 24
MAX_TENSOR_BYTES = 1 << 34

_MAGIC = b"ocr1"
_HEADER = struct.Struct("<4sIQ")
_TENSOR = 1
"""Code of the extension."""
_PLACE = struct.Struct("<BBQ")
"""Type and number of dimensions of a tensor, and where its bytes begin; then come its sizes."""
_ALIGNMENT = 64
_DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32)
_MAX_DIMENSIONS = 2
_MAX_WIDTH = 1 << 20
"""Of rows that are not there."""
_KINDS: dict[str, type[Message]] = {
    kind.__name__: kind
    for kind in (
        messages.Pull,
        messages.Read,
        messages.Push,
        messages.Rows,
        messages.Pushed,
        messages.Refused,
        messages.Relay,
        messages.Relayed,
        messages.Copy,
        messages.Copied,
    )
}


class FrameError(OnecurveError):
    """What was received is not a frame."""


def encode(content: Sequence[Message]) -> list[bytes | memoryview]:
    """Return the pieces of a frame, to be sent one after the other. Tensors are not copied: leave them as they are
    until the frame is sent."""
    buffers, length = list[bytes | memoryview](), 0

    def place(value: Any) -> msgspec.msgpack.Ext:
        nonlocal length
        if not isinstance(value, Tensor):
            raise TypeError(f"{type(value).__name__} cannot be sent")
        tensor = value.contiguous()
        begin, length = length, length + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        if tensor.nbytes:
            buffers.append(tensor.numpy().data.cast("B"))
            buffers.append(bytes(length - begin - tensor.nbytes))
        sizes = struct.pack(f"<{tensor.dim()}Q", *tensor.shape)
        return msgspec.msgpack.Ext(_TENSOR, _PLACE.pack(_DTYPES.index(tensor.dtype), tensor.dim(), begin) + sizes)

    body = msgspec.msgpack.encode([(type(message).__name__, message) for message in content], enc_hook=place)
    if len(body) > MAX_MESSAGES_BYTES or length > MAX_TENSOR_BYTES:
        raise OnecurveError(f"a frame of {len(body) + length:,} bytes is too long to send")
    return [_HEADER.pack(_MAGIC, len(body), length), body, *buffers]


def lengths(header: bytes) -> tuple[int, int]:
    """Return the lengths of messages and tensors that follow a header."""
    magic, body, tensors = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise FrameError(
            "what was received is not a frame of onecurve's row servers; is another program at this address, or "
            "another version of onecurve?"
        )
    if body > MAX_MESSAGES_BYTES or tensors > MAX_TENSOR_BYTES:
        raise FrameError(f"a frame of {body + tensors:,} bytes was announced, which is more than allowed")
    return body, tensors


def decode(body: bytes | bytearray, tensors: bytearray) -> list[Message]:
    """Return the messages of a frame. Their tensors use the memory of `tensors`."""

    def tensor(code: int, data: memoryview) -> Tensor:
        if code != _TENSOR or len(data) < _PLACE.size:
            raise FrameError("a frame has an unknown extension")
        dtype, dimensions, begin = _PLACE.unpack_from(data)
        if dtype >= len(_DTYPES) or dimensions > _MAX_DIMENSIONS or len(data) != _PLACE.size + 8 * dimensions:
            raise FrameError("a frame has a tensor of an unknown type")
        shape = struct.unpack_from(f"<{dimensions}Q", data, _PLACE.size)
        count = math.prod(shape)
        if begin % _ALIGNMENT or begin + count * _DTYPES[dtype].itemsize > len(tensors):
            raise FrameError("a frame has a tensor that is longer than the frame")
        if count == 0:
            if max(shape) > _MAX_WIDTH:
                raise FrameError("a frame has an empty tensor of an absurd shape")
            return torch.empty(shape, dtype=_DTYPES[dtype])
        return torch.frombuffer(tensors, dtype=_DTYPES[dtype], count=count, offset=begin).view(shape)

    try:
        named = msgspec.msgpack.decode(body, type=list[tuple[str, msgspec.Raw]])
        return [msgspec.msgpack.decode(raw, type=_KINDS[name], ext_hook=tensor) for name, raw in named]
    except (msgspec.DecodeError, msgspec.ValidationError, KeyError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"a frame cannot be read: {error}") from None
