"""Decodes tf.train.Example without TensorFlow: a message of protocol buffers with a map of features."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from onecurve.formats.file_format import BadFileError

Field = tuple[int, int, Any]
"""Number and wire type of a field, and its value: a number, or a view of bytes."""

_VARINT, _BITS_64, _BYTES, _BITS_32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


def decode_example(data: bytes) -> dict[str, Any]:
    """Return the features by name: an array of numbers, or a list of bytes. Raises a BadFileError if it is none."""
    features: dict[str, Any] = {}
    for number, _, message in _fields(memoryview(data)):
        if number != 1 or not isinstance(message, memoryview):
            continue
        for key, _, entry in _fields(message):
            if key == 1 and isinstance(entry, memoryview):
                name, value = _entry(entry)
                features[name] = value
    return features


def _entry(entry: memoryview) -> tuple[str, Any]:
    """One pair of the map: name, feature."""
    name, value = "", None
    for number, _, content in _fields(entry):
        if not isinstance(content, memoryview):
            continue
        if number == 1:
            try:
                name = bytes(content).decode()
            except UnicodeDecodeError:
                raise BadFileError("a tf.train.Example has a feature whose name is no text") from None
        elif number == 2:
            value = _feature(content)
    return name, value


def _feature(feature: memoryview) -> Any:
    for number, _, content in _fields(feature):
        if not isinstance(content, memoryview):
            continue
        if number == 1:
            return [bytes(value) for _, _, value in _fields(content) if isinstance(value, memoryview)]
        if number == 2:
            return _floats(content)
        if number == 3:
            return _integers(content)
    return None


def _floats(content: memoryview) -> Any:
    parts = [
        np.frombuffer(_whole(value, 4), "<f4") for _, _, value in _fields(content) if isinstance(value, memoryview)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.float32)


def _integers(content: memoryview) -> Any:
    parts = [
        _varints(value) if isinstance(value, memoryview) else np.array([value], np.uint64).view(np.int64)
        for _, _, value in _fields(content)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])


def _varints(packed: memoryview) -> Any:
    """Numbers of seven bits per byte, the lowest first; the last byte of each is below 128."""
    raw = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(raw < 0x80)
    if len(ends) == len(raw):
        return raw.astype(np.int64)
    begins = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    lengths = ends - begins + 1
    if not len(ends) or ends[-1] != len(raw) - 1 or lengths.max() > _MAX_VARINT_BYTES:
        raise BadFileError("a tf.train.Example has a number that does not end")
    places = np.arange(len(raw)) - np.repeat(begins, lengths)
    shifted = (raw & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(shifted, begins).view(np.int64)


def _fields(message: memoryview) -> Iterator[Field]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, kind, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        elif kind in (_BITS_32, _BITS_64):
            length = 4 if kind == _BITS_32 else 8
        else:
            raise BadFileError("a record is no tf.train.Example")
        if length > len(message) - at:
            raise BadFileError("a tf.train.Example is longer than its record")
        yield number, kind, message[at : at + length]
        at += length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_MAX_VARINT_BYTES):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise BadFileError("a tf.train.Example has a number that does not end")


def _whole(value: memoryview, size: int) -> memoryview:
    if len(value) % size:
        raise BadFileError("a tf.train.Example has a list of numbers that ends in the middle of one")
    return value
