"""TFRecord files: records with their lengths and checksums, each usually a tf.train.Example."""

import struct
from typing import IO, Any

import numpy as np

from onecurve.formats.file_format import BadFileError, FilePart, RandomReader, SampleReader, check_offsets, offsets
from onecurve.formats.index_file import Numbers
from onecurve.formats.storage import HashedStream
from onecurve.formats.tf_example import decode_example

_LENGTH = struct.Struct("<QI")
_CHECKSUM_BYTES = 4
_MAX_RECORD_BYTES = 1 << 28


class TfRecordFormat:
    """Records in the framing of TensorFlow."""

    name = "TFRecord"

    def recognizes(self, path: str, head: bytes) -> bool:  # noqa: ARG002
        return len(head) >= _LENGTH.size and _has_true_length(head[: _LENGTH.size])

    def scan(self, stream: HashedStream, size: int) -> list[FilePart]:
        begins, at = list[int](), 0
        while head := stream.read(_LENGTH.size):
            if len(head) < _LENGTH.size or not _has_true_length(head):
                raise BadFileError(f"the length of record {len(begins)}, at byte {at:,}, is damaged")
            length, _ = _LENGTH.unpack(head)
            end = at + _LENGTH.size + length + _CHECKSUM_BYTES
            if end > size or length > _MAX_RECORD_BYTES:
                raise BadFileError(f"record {len(begins)}, at byte {at:,}, says that it has {length:,} bytes")
            stream.skip(length + _CHECKSUM_BYTES)
            begins.append(at)
            at = end
        return [FilePart(len(begins), offsets(begins, at))]

    def open(self, file: IO[bytes], samples: int, details: Numbers) -> SampleReader:
        return _RecordReader(file, samples, details)


class _RecordReader:
    def __init__(self, file: IO[bytes], samples: int, details: Numbers) -> None:
        self._file, self._begins = RandomReader(file), check_offsets(details, samples, 1 << 62)

    def read(self, offset: int) -> Any:
        begin, end = int(self._begins[offset]), int(self._begins[offset + 1])
        if end - begin > _MAX_RECORD_BYTES:
            raise BadFileError(f"record {offset} has more than {_MAX_RECORD_BYTES:,} bytes")
        data = self._file.between(begin, end)
        length = int.from_bytes(data[:8], "little")
        if len(data) != end - begin or length != len(data) - _LENGTH.size - _CHECKSUM_BYTES:
            raise BadFileError(f"record {offset} is damaged")
        return decode_example(data[_LENGTH.size : -_CHECKSUM_BYTES])


def _has_true_length(head: bytes) -> bool:
    """True if the checksum of the length is right: the masked CRC-32C of its eight bytes."""
    checksum = 0xFFFFFFFF
    for byte in head[:8]:
        checksum = int(_TABLE[(checksum ^ byte) & 0xFF]) ^ (checksum >> 8)
    checksum ^= 0xFFFFFFFF
    masked = ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return masked == int.from_bytes(head[8:12], "little")


def _crc32c_table() -> np.ndarray[Any, np.dtype[np.uint32]]:
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(0x82F63B78), values >> 1)
    return values.astype(np.uint32)


_TABLE = _crc32c_table()
