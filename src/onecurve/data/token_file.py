"""Files of tokens: one array of integers, as numpy saves it or raw."""

import math
from contextlib import suppress
from typing import IO, Any

import numpy as np
import torch

from onecurve.data.file_format import BadFileError, FilePart, SampleReader
from onecurve.data.index_file import Numbers
from onecurve.data.storage import HashedStream

_NUMPY = b"\x93NUMPY"
_KINDS = ("uint8", "uint16", "int32", "uint32", "int64")


class TokenFormat:
    """The index counts tokens; samples are cut from them when they are read."""

    name = "tokens"

    def __init__(self, dtype: str = "uint16") -> None:
        """`dtype`: of raw files."""
        self._raw = np.dtype(dtype)

    def recognizes(self, path: str, head: bytes) -> bool:
        return head.startswith(_NUMPY) or path.endswith(".bin")

    def scan(self, stream: HashedStream, size: int) -> list[FilePart]:
        stream.finish()
        dtype, begin, count = self._layout(stream.file, size)
        return [FilePart(count, [begin, _KINDS.index(dtype.name)])]

    def open(self, file: IO[bytes], samples: int, details: Numbers) -> SampleReader:
        begin, kind = map(int, details) if len(details) == 2 else (0, len(_KINDS))
        if kind >= len(_KINDS):
            raise BadFileError("its index does not fit the file")
        return TokenReader(file, begin, np.dtype(_KINDS[kind]), samples)

    def _layout(self, file: IO[bytes], size: int) -> tuple[np.dtype[Any], int, int]:
        """The type of tokens, where they begin, and their number."""
        file.seek(0)
        if file.read(len(_NUMPY)) != _NUMPY:
            if size % self._raw.itemsize:
                raise BadFileError(f"its {size:,} bytes are no whole number of {self._raw.name}; give dtype=…")
            return self._raw, 0, size // self._raw.itemsize
        file.seek(0)
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
        except Exception as error:  # numpy parses a text of the file as Python, which fails in many ways
            raise BadFileError(f"it is damaged ({type(error).__name__})") from None
        if dtype.name not in _KINDS or len(shape) != 1 or not dtype.isnative:
            raise BadFileError(f"it must be one row of {', '.join(_KINDS)}, but is {dtype} {list(shape)}")
        begin, count = file.tell(), math.prod(shape)
        if begin + count * dtype.itemsize != size:
            raise BadFileError(f"it says that it has {count:,} tokens, which {size:,} bytes do not hold")
        return dtype, begin, count


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
