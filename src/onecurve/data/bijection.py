"""A keyed shuffle of 0 … n-1 that stores nothing: any element of it can be asked for by itself.

A Feistel network over the grid a × b, where a·b is the least such product of near-equal sides that covers n. Each round
adds to one coordinate a keyed hash of the other, which can be undone, so the whole is a bijection of the grid; a result
outside 0 … n-1 is sent round again until it falls inside (cycle walking). The grid exceeds n by less than its side, so
hardly any element is sent twice.
"""

import math

import numpy as np
from numpy.typing import NDArray

from onecurve.describe.seed import mix

Indices = NDArray[np.uint64]

_ROUNDS = 4  # of a strong round function: as many as make a Feistel network look random to one who asks both ways
_HALF = np.uint64(32)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def permute(indices: Indices, size: int, key: int) -> Indices:
    """The images of `indices` (each below `size`) under the bijection of 0 … size-1 that belongs to `key`."""
    side_a = math.isqrt(size - 1) + 1
    side_b = -(-size // side_a)
    keys = [np.uint64(mix(key, round_number)) for round_number in range(_ROUNDS)]
    moved = _feistel(indices, side_a, side_b, keys)
    outside = np.flatnonzero(moved >= size)
    while outside.size:
        moved[outside] = _feistel(moved[outside], side_a, side_b, keys)
        outside = outside[moved[outside] >= size]
    return moved


def _feistel(indices: Indices, side_a: int, side_b: int, keys: list[np.uint64]) -> Indices:
    sides = np.uint64(side_a), np.uint64(side_b)
    a, b = np.divmod(indices, sides[1])
    for number, key in enumerate(keys):
        if number % 2 == 0:
            _shift(a, _hash(b, key), sides[0])
        else:
            _shift(b, _hash(a, key), sides[1])
    return a * sides[1] + b


def _shift(values: Indices, hashes: Indices, side: np.uint64) -> None:
    """values + (a number below `side` drawn from the hashes), modulo `side`, in place and without a division."""
    hashes *= side  # below 2^64, since a side is below 2^32
    hashes >>= _HALF
    values += hashes
    np.minimum(values, values - side, out=values)  # what was below `side` wraps round to a huge number


def _hash(values: Indices, key: np.uint64) -> Indices:
    """32 bits of each value and the key, well stirred; overflow is meant."""
    values = values + key
    values *= _FACTORS[0]
    values ^= values >> _HALF
    values *= _FACTORS[1]
    values >>= _HALF
    return values
