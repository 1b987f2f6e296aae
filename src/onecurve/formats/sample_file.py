"""Files of samples that are prepared already: what a function has made of others.

A sample is stored with msgpack; arrays and tensors in it are a short description and their bytes. Nothing in it is
code, so a file of somebody else can do no harm.
"""

import math
import struct
from collections.abc import Iterable, Iterator
from typing import IO, Any

import msgspec
import numpy as np
import torch
import xxhash

from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import (
    SKIPPED,
    BadFileError,
    FilePart,
    RandomReader,
    SampleReader,
    check_offsets,
    offsets,
)
from onecurve.formats.index_file import Numbers
from onecurve.formats.storage import HashedStream

_MAGIC = b"onecurve samples\n\x01"
_FRAME = struct.Struct("<QQ")
"""Before each sample: its length and its hash. A sample that is left out has no content."""
_MAX_SAMPLE_BYTES = 1 << 30
_ARRAY, _SCALAR, _TENSOR, _TUPLE = 1, 2, 3, 4
_ARRAY_KINDS = "biufc"
_DESCRIPTION = struct.Struct("<I")
_RAW_DTYPES = {torch.bfloat16: torch.int16}
"""Types of tensors that numpy lacks, and those that have as many bits."""
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


class SampleFormat:
    """Prepared samples."""

    name = "prepared samples"

    def recognizes(self, path: str, head: bytes) -> bool:  # noqa: ARG002
        return head.startswith(_MAGIC)

    def scan(self, stream: HashedStream, size: int) -> list[FilePart]:
        at = len(stream.read(len(_MAGIC)))
        begins = list[int]()
        while head := stream.read(_FRAME.size):
            length = _FRAME.unpack(head)[0] if len(head) == _FRAME.size else size
            end = at + _FRAME.size + length
            if end > size:
                raise BadFileError(f"sample {len(begins)}, at byte {at:,}, is not complete")
            stream.skip(length)
            begins.append(at)
            at = end
        return [FilePart(len(begins), offsets(begins, at))]

    def open(self, file: IO[bytes], samples: int, details: Numbers) -> SampleReader:
        return _PreparedReader(file, samples, details)


def file_parts(samples: Iterable[Any]) -> Iterator[bytes]:
    """The content of a file with these samples."""
    yield _MAGIC
    for number, sample in enumerate(samples):
        try:
            content = b"" if sample is SKIPPED else encode_sample(sample)
        except OnecurveError as error:
            raise OnecurveError(f"sample {number}: {error}") from None
        yield _FRAME.pack(len(content), xxhash.xxh3_64_intdigest(content))
        yield content


def encode_sample(sample: Any) -> bytes:
    """Encode what a function has returned. Raises an OnecurveError if it has a value that cannot be stored."""
    try:
        return msgspec.msgpack.encode(_plain(sample))
    except (TypeError, OverflowError) as error:
        raise OnecurveError(f"it cannot be stored: {error}") from None


def decode_sample(content: bytes) -> Any:
    """Return the sample. Raises a BadFileError if it is damaged."""
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, ValueError, TypeError, KeyError, struct.error, RuntimeError, SyntaxError) as error:
        raise BadFileError(f"it is damaged ({error})") from None


class _PreparedReader:
    def __init__(self, file: IO[bytes], samples: int, details: Numbers) -> None:
        self._file, self._begins = RandomReader(file), check_offsets(details, samples, 1 << 62)

    def read(self, offset: int) -> Any:
        begin, end = int(self._begins[offset]), int(self._begins[offset + 1])
        if not _FRAME.size <= end - begin <= _MAX_SAMPLE_BYTES:
            raise BadFileError(f"sample {offset} cannot have {end - begin:,} bytes")
        data = self._file.between(begin, end)
        content = data[_FRAME.size :]
        if len(data) != end - begin or _FRAME.pack(len(content), xxhash.xxh3_64_intdigest(content)) != data[:16]:
            raise BadFileError(f"sample {offset} is damaged")
        return decode_sample(content) if content else SKIPPED


def _plain(value: Any) -> Any:
    """Replace arrays, tensors and tuples by extensions of msgpack."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case np.generic():
            return _extension(_SCALAR, value.dtype.str, np.asarray(value))
        case np.ndarray():
            return _extension(_ARRAY, value.dtype.str, value)
        case torch.Tensor():
            local = value.detach().cpu()
            raw = local.view(_RAW_DTYPES.get(local.dtype, local.dtype)) if local.dtype in _RAW_DTYPES else local
            return _extension(_TENSOR, str(value.dtype).removeprefix("torch."), raw.numpy())
        case tuple():
            return msgspec.msgpack.Ext(_TUPLE, msgspec.msgpack.encode([_plain(each) for each in value]))
        case list():
            return [_plain(each) for each in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {key: _plain(each) for key, each in value.items()}
    raise OnecurveError(
        f"a value of type {type(value).__name__} cannot be stored; return numbers, text, bytes, arrays, tensors, and "
        "lists, tuples and dicts of those"
    )


def _extension(code: int, dtype: str, array: np.ndarray[Any, Any]) -> msgspec.msgpack.Ext:
    if array.dtype.kind not in _ARRAY_KINDS:
        raise OnecurveError(f"an array of {array.dtype} cannot be stored; return numbers")
    description = msgspec.msgpack.encode([dtype, array.dtype.str, list(array.shape)])
    content = _DESCRIPTION.pack(len(description)) + description + np.ascontiguousarray(array).tobytes()
    return msgspec.msgpack.Ext(code, content)


def _extended(code: int, data: memoryview) -> Any:
    if code == _TUPLE:
        return tuple(_decoder.decode(data))
    (length,) = _DESCRIPTION.unpack_from(data)
    begin = _DESCRIPTION.size + length
    name, stored, shape = msgspec.msgpack.decode(data[_DESCRIPTION.size : begin], type=tuple[str, str, tuple[int, ...]])
    dtype = np.dtype(stored)
    if dtype.kind not in _ARRAY_KINDS or min(shape, default=0) < 0:
        raise ValueError(f"an array of {stored}")
    if math.prod(shape) * dtype.itemsize != len(data) - begin:
        raise ValueError("an array of another size")
    array = np.frombuffer(data, dtype, offset=begin).reshape(shape).copy()
    if code != _TENSOR:
        return array[()] if code == _SCALAR else array
    wanted = _DTYPES[name]
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == wanted else tensor.view(wanted)


_decoder = msgspec.msgpack.Decoder(ext_hook=_extended)
