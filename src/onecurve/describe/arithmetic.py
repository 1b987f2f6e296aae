"""Small sums that several rooms do."""

from collections.abc import Sequence
from itertools import pairwise


def divisors(number: int) -> list[int]:
    """In order."""
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def between(points: Sequence[tuple[float, float]], place: float) -> float:
    """The value at a place on the lines between points, which are in order; beyond the ends that of the ends."""
    if place <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if place <= right:
            return low + (high - low) * (place - left) / (right - left)
    return points[-1][1]


def ceil_log2(count: int) -> int:
    """Depth of a binary tree over `count` members: the number of messages that follow each other along it."""
    return (count - 1).bit_length()
