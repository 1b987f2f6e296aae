"""How often a snapshot is taken: as a function of what one costs and of how often the run fails."""

import math

_MAX_COST = 0.01
"""Snapshots take at most this fraction of the time."""


def snapshot_interval(copy_seconds: float, step_seconds: float, seconds_between_failures: float) -> int:
    """Return the number of steps between two snapshots.

    Young's rule: the time that is lost by snapshots and by steps that are done again is smallest if the seconds between
    two snapshots are the square root of 2 × seconds of a snapshot × seconds between failures.
    """
    if step_seconds <= 0:
        return 1
    best = math.sqrt(2 * copy_seconds * seconds_between_failures)
    affordable = copy_seconds / _MAX_COST
    return max(1, math.ceil(max(best, affordable) / step_seconds))
