"""The division of a round's samples among data-parallel ranks of unequal speed."""

import heapq
from collections.abc import Sequence


def shares_by_speed(samples: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return integer shares of at least 1 for which the slowest rank finishes as early as possible.

    The greedy algorithm is exact: every sample goes to the rank that would finish it first, and moving a sample to
    another rank cannot improve that.
    """
    shares = [1] * len(speeds)
    finish_times = [(2 / speed, rank) for rank, speed in enumerate(speeds)]
    heapq.heapify(finish_times)
    for _ in range(samples - len(speeds)):
        _, rank = heapq.heappop(finish_times)
        shares[rank] += 1
        heapq.heappush(finish_times, ((shares[rank] + 1) / speeds[rank], rank))
    return tuple(shares)
