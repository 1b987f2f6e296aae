"""A keyed pseudorandom permutation of 0 … n-1 that stores nothing: any element can be computed on its own.

It is a Feistel network over the grid a × b, where a and b are nearly equal and a·b is the smallest such product that
covers n. Each round adds a keyed hash of one coordinate to the other one, which can be undone, so the network is a
bijection of the grid. A result outside 0 … n-1 goes through the network again until it is inside (cycle walking). The
grid exceeds n by less than the length of one side, so very few elements take a second pass.
"""

import math

import numpy as np
from numpy.typing import NDArray

from onecurve.describe.seed import mix

Indices = NDArray[np.uint64]

_ROUNDS = 4  # Luby and Rackoff: four rounds look random even to an observer who can also invert the permutation
_HALF_BITS = np.uint64(32)
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def permute(indices: Indices, size: int, key: int) -> Indices:
    """Return the images of `indices` (each below `size`) under the permutation of 0 … size-1 selected by `key`."""
    side_a = math.isqrt(size - 1) + 1
    side_b = -(-size // side_a)
    round_keys = [np.uint64(mix(key, round_number)) for round_number in range(_ROUNDS)]
    images = _feistel(indices, side_a, side_b, round_keys)
    outside = np.flatnonzero(images >= size)
    while outside.size:
        images[outside] = _feistel(images[outside], side_a, side_b, round_keys)
        outside = outside[images[outside] >= size]
    return images


def _feistel(indices: Indices, side_a: int, side_b: int, round_keys: list[np.uint64]) -> Indices:
    sides = np.uint64(side_a), np.uint64(side_b)
    a, b = np.divmod(indices, sides[1])
    for round_number, key in enumerate(round_keys):
        if round_number % 2 == 0:
            _shift(a, _hash(b, key), sides[0])
        else:
            _shift(b, _hash(a, key), sides[1])
    return a * sides[1] + b


def _shift(values: Indices, hashes: Indices, side: np.uint64) -> None:
    """Add to each value its hash scaled to 0 … side-1, modulo `side`; in place and without a division."""
    hashes *= side  # cannot overflow: a hash and a side are both below 2^32
    hashes >>= _HALF_BITS
    values += hashes
    np.minimum(values, values - side, out=values)  # if value < side, the difference wraps around to a huge number


def _hash(values: Indices, key: np.uint64) -> Indices:
    """A 32-bit hash of each value and the key; integer overflow is intended."""
    values = values + key
    values *= _MULTIPLIERS[0]
    values ^= values >> _HALF_BITS
    values *= _MULTIPLIERS[1]
    values >>= _HALF_BITS
    return values
