"""Small files of data in every format, with samples that are numbered."""

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import zstandard

import onecurve as oc

SIZES = (7, 1, 12)
"""Samples of the files; their numbers go through all of them."""


def write_jsonl(folder: Path, sizes: Sequence[int] = SIZES) -> None:
    for name, numbers in _numbered(sizes):
        _write(folder / f"{name}.jsonl", _lines(numbers))


def write_gzip(folder: Path, sizes: Sequence[int] = SIZES) -> None:
    for name, numbers in _numbered(sizes):
        half = len(numbers) // 2
        _write(
            folder / f"{name}.jsonl.gz",
            b"".join(gzip.compress(_lines(part)) for part in (numbers[:half], numbers[half:])),
        )


def write_zstandard(folder: Path, sizes: Sequence[int] = SIZES) -> None:
    for name, numbers in _numbered(sizes):
        half = len(numbers) // 2
        parts = (zstandard.compress(_lines(part)) for part in (numbers[:half], numbers[half:]) if part)
        _write(folder / f"{name}.jsonl.zst", b"".join(parts))


def write_tar(folder: Path, sizes: Sequence[int] = SIZES) -> None:
    for name, numbers in _numbered(sizes):
        _write(folder / f"{name}.tar", tar_of([(f"d/{number:03}.id", str(number).encode()) for number in numbers]))


def write_parquet(folder: Path, sizes: Sequence[int] = SIZES) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, numbers in _numbered(sizes):
        table = pyarrow.table({"id": list(numbers), "text": ["x" * number for number in numbers]})
        pyarrow.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=5)


def write_tfrecord(folder: Path, sizes: Sequence[int] = SIZES) -> None:
    for name, numbers in _numbered(sizes):
        _write(folder / f"{name}.tfrecord", b"".join(record(example({"id": [number]})) for number in numbers))


def write_tokens(folder: Path, sizes: Sequence[int] = SIZES) -> None:
    """A sample of one token has its number as its token."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, numbers in _numbered(sizes):
        tokens = np.array([*numbers, 0], np.uint16)
        if name == "1":
            _write(folder / "1.bin", tokens.tobytes())
        else:
            np.save(folder / f"{name}.npy", tokens)


def write_folder(folder: Path, sizes: Sequence[int] = SIZES) -> None:
    for name, numbers in _numbered(sizes):
        for number in numbers:
            _write(folder / name / f"{number:03}.png", b"\x89PNG\r\n" + str(number).encode())


WRITERS: dict[str, Callable[..., None]] = {
    "jsonl": write_jsonl,
    "gzip": write_gzip,
    "zstandard": write_zstandard,
    "tar": write_tar,
    "parquet": write_parquet,
    "tfrecord": write_tfrecord,
    "tokens": write_tokens,
    "folder": write_folder,
}


def write_indexed(folder: Path, sizes: Sequence[int] = SIZES) -> Path:
    """Write files of every format, each in a folder of its own, with their indices."""
    for kind, write in WRITERS.items():
        write(folder / kind, sizes)
        oc.index(str(folder / kind), processes=1)
    return folder


def tar_of(members: list[tuple[str, bytes]]) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w") as tar:
        for name, content in members:
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return found.getvalue()


def record(data: bytes) -> bytes:
    """A record of TFRecord."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


def masked_crc32c(data: bytes) -> int:
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ (0x82F63B78 if checksum & 1 else 0)
    checksum ^= 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def example(features: dict[str, list[int]]) -> bytes:
    """A tf.train.Example of integers."""
    entries = (
        _field(1, _field(1, name.encode()) + _field(2, _field(3, _field(1, b"".join(map(_varint, values))))))
        for name, values in features.items()
    )
    return _field(1, b"".join(entries))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _numbered(sizes: Sequence[int]) -> list[tuple[str, range]]:
    ends = np.cumsum(sizes).tolist()
    return [(str(at), range(end - size, end)) for at, (size, end) in enumerate(zip(sizes, ends, strict=True))]


def _lines(numbers: range) -> bytes:
    return b"".join(json.dumps({"id": number, "text": "x" * number}).encode() + b"\n" for number in numbers)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
