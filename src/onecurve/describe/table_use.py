"""How a job uses an embedding table, as its data shows."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RowSeconds:
    """Seconds that a host needs for some rows of a table: a constant, and seconds per row."""

    per_call: float
    per_row: float

    def of(self, rows: float) -> float:
        return self.per_call + rows * self.per_row


@dataclass(frozen=True)
class RowCosts:
    """What a host needs to work on the rows of a table."""

    lookup: RowSeconds
    merge: RowSeconds
    """To add gradients of rows by their ids."""
    update: RowSeconds


@dataclass(frozen=True)
class TableUse:
    """One table."""

    name: str
    width: int
    """Numbers per row."""
    state_width: int
    """Numbers of optimizer state per row."""
    seen: tuple[tuple[int, int], ...]
    """Numbers of samples, in ascending order, each with the number of distinct ids in them."""
    samples: int
    """Different samples that the training uses."""
    costs: RowCosts

    @property
    def rows(self) -> float:
        """Estimated number of rows at the end of the training."""
        return self.distinct(self.samples)

    def distinct(self, samples: float) -> float:
        """Estimate the number of distinct ids in some samples.

        Between two measured numbers, and beyond the last, it grows with a power of the number of samples (Heaps' law).
        """
        points = [(math.log(number), math.log(max(1, ids))) for number, ids in self.seen]
        if len(points) == 1 or samples <= self.seen[0][0]:
            return self.seen[0][1] * samples / self.seen[0][0]
        at = math.log(samples)
        last = len(points) - 1
        upper = next((index for index in range(1, last + 1) if at <= points[index][0]), last)
        (x0, y0), (x1, y1) = points[upper - 1], points[upper]
        slope = min(1.0, max(0.0, (y1 - y0) / (x1 - x0)))
        return math.exp(y1 + slope * (at - x1))
