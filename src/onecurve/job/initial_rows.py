"""First values of embedding rows, as a function of (seed, table, id, column): every machine computes the same ones."""

import math
from zlib import crc32

import torch
from torch import Tensor

from onecurve.describe.seed import mix

_GOLDEN_RATIO = 0x9E3779B97F4A7C15 - (1 << 64)
_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))
"""The constants of splitmix64, as signed numbers: torch has no unsigned arithmetic, but the same bits."""


def initial_rows(seed: int, table: str, ids: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Return one row per id, uniform between −1/√width and 1/√width."""
    key = mix(seed, crc32(table.encode()))
    of_row = hash64(ids ^ (key - (1 << 64) if key >> 63 else key))
    columns = torch.arange(1, width + 1) * _GOLDEN_RATIO
    bits = _shift_right(hash64(of_row[:, None] + columns), 11)  # as many as a float64 has
    return ((bits.double() * 2.0**-52 - 1.0) / math.sqrt(width)).to(dtype)


def hash64(values: Tensor) -> Tensor:
    """Hash each 64-bit number (splitmix64)."""
    values = values + _GOLDEN_RATIO
    values = (values ^ _shift_right(values, 30)) * _FACTORS[0]
    values = (values ^ _shift_right(values, 27)) * _FACTORS[1]
    return values ^ _shift_right(values, 31)


def _shift_right(values: Tensor, bits: int) -> Tensor:
    """Shift without copying the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
