"""Documents of tokens, concatenated and cut into sequences of one length."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from onecurve.data.function_identity import Identity
from onecurve.data.piece_work import all_samples, locked, work_on_pieces
from onecurve.data.pieces import Pieces
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.formats.file_format import SKIPPED
from onecurve.formats.index_file import DataPiece, IndexFile, write_index
from onecurve.job.hugging_face_labels import IGNORED

_FORMAT = "lengths of documents"
_KEPT_PIECES = 64
"""Of so many pieces the ends of documents are kept; they are mapped from a file."""


class Packing:
    """Sequences of tokens in the concatenated documents of each piece.

    To find a token, the lengths of all documents must be known: they are counted once, and stored beside the index of
    the data.
    """

    def __init__(self, source: Pieces, length: int, separate: bool) -> None:
        if length < 1:
            raise OnecurveError(f"packed: length must be at least 1, got {length}")
        self._source, self._length, self._separate = source, length, separate
        self._lengths = _document_lengths(source)
        self._document_ends = OrderedDict[int, Any]()
        self.sizes = np.maximum(self._lengths.sizes.astype(np.int64) - 1, 0) // length
        """Sequences of each piece."""
        if not self.sizes.sum():
            raise OnecurveError(f"packed: no file has enough tokens for a sequence of {length}")

    @property
    def identity(self) -> Identity:
        return Identity(f"packed({self._length})", f"{self._length} {self._separate}")

    def read(self, piece: int, offset: int) -> Any:
        begin = offset * self._length
        end = begin + self._length + 1
        ends = self._ends_of(piece)
        first, last = (int(np.searchsorted(ends, at, side="right")) for at in (begin, end - 1))
        parts, starts = list[Tensor](), list[int]()
        for document in range(first, last + 1):
            document_begin = int(ends[document - 1]) if document else 0
            if document_begin == int(ends[document]):
                continue
            value = self._source.read(piece, document)
            if value is SKIPPED:  # it could be read when the lengths were counted
                return SKIPPED
            tokens = _tokens(value)
            if len(tokens) != int(ends[document]) - document_begin:
                raise UserCodeError(
                    f"packed: document {document} of piece {piece} has {len(tokens)} tokens, and had "
                    f"{int(ends[document]) - document_begin} when they were counted; its function must return the "
                    "same tokens each time"
                )
            parts.append(tokens[max(0, begin - document_begin) : end - document_begin])
            starts.append(document_begin - begin)
        return self._sample(torch.cat(parts), starts)

    def _sample(self, tokens: Tensor, starts: Sequence[int]) -> Any:
        """`starts`: where each document begins, which may be before the first token."""
        inputs, target = tokens[:-1], tokens[1:]
        if not self._separate:
            return inputs, target
        at = torch.arange(self._length)
        begins = torch.tensor(starts)
        document = torch.searchsorted(begins, at, right=True) - 1
        target = target.clone()
        target[[start - 1 for start in starts if 0 < start <= self._length]] = IGNORED
        mask = (document[:, None] == document[None, :]) & (at[:, None] >= at[None, :])
        positions = at - begins[document]
        return {"input_ids": inputs, "position_ids": positions, "attention_mask": mask[None]}, target

    def _ends_of(self, piece: int) -> Any:
        """Where each document of a piece ends; those of some pieces are kept."""
        if piece not in self._document_ends:
            self._document_ends[piece] = self._lengths.piece(piece).details
            if len(self._document_ends) > _KEPT_PIECES:
                self._document_ends.popitem(last=False)
        return self._document_ends[piece]


def _document_lengths(source: Pieces) -> IndexFile:
    """The tokens of each document, counted now or read from the file of an earlier time."""
    identity = source.identity()
    index = source.index_path()
    key = xxhash.xxh3_64_hexdigest("-".join(each.hash for each in identity).encode())
    path = index.with_name(f"{index.name}.lengths-{key}")
    if not path.exists():
        with locked(path.with_name(f".{path.name}.lock"), "the lengths of documents"):
            if not path.exists():
                counted = work_on_pieces(
                    source, _count, range(len(source.piece_sizes)), f"counting the tokens of {index.parent}"
                )
                pieces = (
                    DataPiece(
                        path=f"piece-{piece}",
                        size=int(ends[-1]) if len(ends) else 0,
                        stamp=0,
                        hash=0,
                        samples=len(ends),
                        details=ends,
                    )
                    for piece, ends in counted
                )
                write_index(path, _FORMAT, {}, pieces)
    lengths = IndexFile(path)
    if lengths.format != _FORMAT or not np.array_equal(lengths.samples, source.piece_sizes.astype(np.uint64)):
        raise OnecurveError(f"{path}: it is not of these files; delete it")
    return lengths


def _count(source: Pieces, piece: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    lengths = [0 if value is SKIPPED else len(_tokens(value)) for value in all_samples(source, piece)]
    return np.cumsum(lengths, dtype=np.uint64)


def _tokens(value: Any) -> Tensor:
    try:
        tokens = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise OnecurveError(
            f"packed: each sample must be a sequence of tokens, got {type(value).__name__} ({error}); make them with "
            ".map(tokenize) before .packed(…)"
        ) from None
    if tokens.ndim != 1 or (tokens.is_floating_point() and len(tokens)):  # an empty list makes a tensor of floats
        raise OnecurveError(
            f"packed: each sample must be one row of token numbers, got {tokens.dtype} of shape {list(tokens.shape)}"
        )
    return tokens.to(torch.int64)
