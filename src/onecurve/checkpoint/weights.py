"""Writes a model's weights as one safetensors file, tensor by tensor: no more than one whole tensor is ever held."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from onecurve.checkpoint.format import NAMES, header, raw
from onecurve.checkpoint.local import replace_whole
from onecurve.describe.errors import OnecurveError
from onecurve.device.piece import Piece


def save_weights(pieces: Sequence[Piece], path: Path, *, writer: bool) -> None:
    """Every rank that holds a part must call this; the `writer` alone touches the disk.

    Tied tensors are written once, under their first name, as safetensors' own `load_model` expects.
    """
    if not writer:
        for piece in pieces:
            piece.gather()
        return
    first = header({piece.name: (piece.whole.dtype, piece.shape) for piece in pieces}, {"format": "pt"})
    replace_whole(path, itertools.chain([first], (raw(piece.gather()) for piece in pieces)))


def refuse_unsaveable(pieces: Sequence[Piece]) -> None:
    """Say before training, not after, that a tensor has a type the file format does not know."""
    for piece in pieces:
        if piece.whole.dtype not in NAMES:
            raise OnecurveError(
                f"model: {piece.name} is of type {piece.whole.dtype}, which safetensors cannot hold; keep it in "
                "another type, or register it with persistent=False if it need not be saved"
            )
