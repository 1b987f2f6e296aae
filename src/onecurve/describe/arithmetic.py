"""Small numeric functions that several packages need."""

from collections.abc import Sequence
from itertools import pairwise


def divisors(number: int) -> list[int]:
    """Return all divisors of `number` in ascending order."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Interpolate linearly between (x, y) points sorted by x. Outside their range, return the y of the nearest end."""
    if x <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if x <= right:
            return low + (high - low) * (x - left) / (right - left)
    return points[-1][1]


def ceil_log2(count: int) -> int:
    """Return the depth of a binary tree over `count` members: the number of sequential messages along it."""
    return (count - 1).bit_length()
