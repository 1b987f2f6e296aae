"""Files of tokens: one array of integers, as numpy saves it or raw."""

import math
from contextlib import suppress
from typing import IO, Any

import numpy as np
import torch

from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import BadFileError, FilePart, SampleReader
from onecurve.formats.index_file import Numbers
from onecurve.formats.storage import HashedStream

_NUMPY = b"\x93NUMPY"
DTYPES = ("uint8", "uint16", "int32", "uint32", "int64")
_RAW = len(DTYPES)
"""The kind of a raw file: what its bytes mean is said when it is read."""


class TokenFormat:
    """The index counts tokens, of raw files bytes; samples are cut from them when they are read."""

    name = "tokens"

    def __init__(self, dtype: str = "uint16") -> None:
        """`dtype`: of raw files."""
        self._raw = np.dtype(dtype)

    def recognizes(self, path: str, head: bytes) -> bool:
        return head.startswith(_NUMPY) or path.endswith(".bin")

    def scan(self, stream: HashedStream, size: int) -> list[FilePart]:
        stream.finish()
        return [_layout(stream.file, size)]

    def tokens(self, samples: int, details: Numbers) -> int:
        """The number of tokens in a file of which the index counts so many."""
        return samples // self._raw.itemsize if _kind(details) == _RAW else samples

    def open(self, file: IO[bytes], samples: int, details: Numbers) -> SampleReader:
        kind = _kind(details)
        if kind == _RAW and samples % self._raw.itemsize:
            raise OnecurveError(
                f"data.tokens: a file of {samples:,} bytes has no whole number of {self._raw.name}; give another dtype"
            )
        dtype = self._raw if kind == _RAW else np.dtype(DTYPES[kind])
        return TokenReader(file, int(details[0]), dtype, self.tokens(samples, details))


def _kind(details: Numbers) -> int:
    if len(details) != 2 or int(details[1]) > _RAW:
        raise BadFileError("its index does not fit the file")
    return int(details[1])


def _layout(file: IO[bytes], size: int) -> FilePart:
    """How many tokens a file has, where they begin, and of what kind they are."""
    file.seek(0)
    if file.read(len(_NUMPY)) != _NUMPY:
        return FilePart(size, [0, _RAW])
    file.seek(0)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except Exception as error:  # numpy parses a text of the file as Python, which fails in many ways
        raise BadFileError(f"it is damaged ({type(error).__name__})") from None
    if dtype.name not in DTYPES or len(shape) != 1 or not dtype.isnative:
        raise BadFileError(f"it must be one row of {', '.join(DTYPES)}, but is {dtype} {list(shape)}")
    begin, count = file.tell(), math.prod(shape)
    if begin + count * dtype.itemsize != size:
        raise BadFileError(f"it says that it has {count:,} tokens, which {size:,} bytes do not hold")
    return FilePart(count, [begin, DTYPES.index(dtype.name)])


def _mapped(file: IO[bytes], dtype: np.dtype[Any], begin: int, tokens: int) -> Any:
    try:
        return np.asarray(np.memmap(file, dtype, "r", begin, (tokens,)))  # slices of a plain array are faster
    except ValueError as error:
        raise BadFileError(f"it is shorter than its index says ({error})") from None


class TokenReader:
    """Reads tokens of one file."""

    def __init__(self, file: IO[bytes], begin: int, dtype: np.dtype[Any], tokens: int) -> None:
        self._file, self._begin, self._dtype, self._tokens = file, begin, dtype, tokens
        self._mapped: Any = None
        with suppress(OSError):  # a file that is not on this host has no descriptor
            file.fileno()
            self._mapped = _mapped(file, dtype, begin, tokens)

    def read(self, offset: int) -> Any:
        """Return one token."""
        return int(self.between(offset, offset + 1)[0])

    def between(self, begin: int, end: int) -> torch.Tensor:
        """Return consecutive tokens."""
        if self._mapped is not None:
            return torch.from_numpy(self._mapped[begin:end].astype(np.int64))
        self._file.seek(self._begin + begin * self._dtype.itemsize)
        data = self._file.read((end - begin) * self._dtype.itemsize)
        if len(data) != (end - begin) * self._dtype.itemsize:
            raise BadFileError(f"it ends before token {end:,}")
        return torch.from_numpy(np.frombuffer(data, self._dtype).astype(np.int64))
