"""Shares of a round for ranks of unequal speed."""

import heapq
from collections.abc import Sequence


def by_speed(samples: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers of at least 1, such that the last to be ready is ready as early as possible.

    Exact: every sample goes to the rank that would be ready with it first, which no exchange of samples can better.
    """
    shares = [1] * len(speeds)
    ready = [(2 / speed, rank) for rank, speed in enumerate(speeds)]
    heapq.heapify(ready)
    for _ in range(samples - len(speeds)):
        _, rank = heapq.heappop(ready)
        shares[rank] += 1
        heapq.heappush(ready, ((shares[rank] + 1) / speeds[rank], rank))
    return tuple(shares)
