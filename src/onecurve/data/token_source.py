"""Sequences of tokens, cut from files of tokens."""

from typing import Any

import numpy as np

from onecurve.data.file_source import FileSource
from onecurve.data.function_identity import Identity
from onecurve.describe.errors import OnecurveError
from onecurve.formats.token_file import DTYPES, TokenFormat, TokenReader


class TokenSource(FileSource):
    """Each sample is a pair of consecutive tokens and those that follow them, both of the same length."""

    def __init__(self, location: str, length: int, dtype: str, window: int, bad: str, index: str | None) -> None:
        if length < 1:
            raise OnecurveError(f"tokens: length must be at least 1, got {length}")
        if dtype not in DTYPES:
            raise OnecurveError(f"tokens: dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
        format = TokenFormat(dtype)
        super().__init__(location, format, window, bad, index)
        self._length = length
        pieces = (self._index.piece(number) for number in range(len(self._index)))
        tokens = [format.tokens(piece.samples, np.asarray(piece.details, np.uint64)) for piece in pieces]
        self._set_sizes(np.maximum(np.array(tokens, np.int64) - 1, 0) // length)

    def identity(self) -> list[Identity]:
        return [*super().identity(), Identity("length", str(self._length))]

    def _sample(self, piece: int, offset: int) -> Any:
        reader = self.reader(piece)
        assert isinstance(reader, TokenReader)
        begin = offset * self._length
        tokens = reader.between(begin, begin + self._length + 1)
        return tokens[:-1], tokens[1:]
