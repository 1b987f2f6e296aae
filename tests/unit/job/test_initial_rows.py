"""First values depend on seed, table, id and column alone, and are the same on every machine."""

import math
from zlib import crc32

import torch

from onecurve.describe.seed import mix
from onecurve.job.initial_rows import initial_rows

MASK, GOLDEN_RATIO = (1 << 64) - 1, 0x9E3779B97F4A7C15
IDS = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63)])


def splitmix64(value: int) -> int:
    value = (value + GOLDEN_RATIO) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def test_they_are_those_of_unsigned_arithmetic() -> None:
    key = mix(0, crc32(b"item"))
    of_rows = [splitmix64((number & MASK) ^ key) for number in IDS.tolist()]
    expected = [
        [((splitmix64(row + column * GOLDEN_RATIO) >> 11) * 2.0**-52 - 1) / math.sqrt(2) for column in (1, 2)]
        for row in of_rows
    ]
    assert initial_rows(0, "item", IDS, 2, torch.float64).tolist() == expected


def test_each_argument_matters() -> None:
    rows = initial_rows(0, "item", IDS, 4, torch.float64)
    assert rows.unique().numel() == 20
    for other in (initial_rows(1, "item", IDS, 4, torch.float64), initial_rows(0, "user", IDS, 4, torch.float64)):
        assert not (rows == other).any()
    assert torch.equal(initial_rows(0, "item", IDS.flip(0), 4, torch.float64), rows.flip(0))


def test_they_are_uniform() -> None:
    rows = initial_rows(3, "item", torch.arange(50_000), 4, torch.float32) * 2
    assert rows.dtype == torch.float32
    assert float(rows.abs().max()) <= 1
    counts = torch.histc(rows, bins=20, min=-1, max=1)
    assert float((counts / 10_000 - 1).abs().max()) < 0.05
    correlations = torch.corrcoef(rows.T) - torch.eye(4)
    assert float(correlations.abs().max()) < 0.02
