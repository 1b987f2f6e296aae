"""The order of several sources that are mixed by weights: which source a position belongs to is a function of it.

At every position, the samples of a source so far differ from its share by less than one: each next sample is of the
source whose share demands one first (Tijdeman, The chairman assignment problem, 1980). The pattern repeats after a
period, the sum of the weights as integers, so any position is found at once.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from onecurve.data.order import Order, Samples
from onecurve.describe.errors import OnecurveError

_MAX_PERIOD = 1 << 20
_DENOMINATOR = 10_000


class Mixture:
    """The repeating pattern of sources."""

    def __init__(self, weights: Sequence[float]) -> None:
        total = sum(weights)
        if not weights or min(weights) <= 0:
            raise OnecurveError(f"mix: weights must be above 0, got {list(weights)}")
        shares = [Fraction(weight / total).limit_denominator(_DENOMINATOR) for weight in weights]
        period = lcm(*(share.denominator for share in shares))
        counts = [max(1, round(share * period)) for share in shares]
        self.period = sum(counts)
        if self.period > _MAX_PERIOD:
            raise OnecurveError(f"mix: weights {list(weights)} need a pattern of {self.period:,} samples; round them")
        self._counts = np.array(counts, np.int64)
        self._pattern = _chairmen(self._counts)
        self._before = np.zeros((len(counts), self.period + 1), np.int64)
        for source in range(len(counts)):
            self._before[source, 1:] = np.cumsum(self._pattern == source)

    def sources(self, begin: int, end: int) -> NDArray[np.int64]:
        """The sources of the positions begin … end-1."""
        return self._pattern[np.arange(begin, end) % self.period]

    def taken(self, source: int, position: int) -> int:
        """Samples of a source among the positions before this one."""
        return int(position // self.period * self._counts[source] + self._before[source, position % self.period])

    def position(self, source: int, taken: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions of samples of a source, by how many of its samples are before them."""
        places = np.flatnonzero(self._pattern == source)
        return taken // len(places) * self.period + places[taken % len(places)]

    def positions_without_repetition(self, sizes: Sequence[int]) -> int:
        """The most positions in which no source begins anew."""
        low, high = 0, sum(sizes) + 1
        while high - low > 1:
            middle = (low + high) // 2
            fits = all(self.taken(source, middle) <= size for source, size in enumerate(sizes))
            low, high = (middle, high) if fits else (low, middle)
        return low


class MixOrder(Order):
    """Positions alternate between the orders of the sources; each of them goes through its own epochs."""

    def __init__(self, mixture: Mixture, orders: Sequence[Order], pieces: Sequence[int]) -> None:
        """`pieces`: of each source; those of all sources are numbered one after the other."""
        self._mixture, self._orders = mixture, orders
        self._first_pieces = np.concatenate(([0], np.cumsum(pieces)))
        self.size = mixture.positions_without_repetition([order.size for order in orders])
        self.text = f"{self.size:,} samples"

    def samples(self, begin: int, end: int) -> Samples:
        sources = self._mixture.sources(begin, end)
        epochs, files, offsets = (np.empty(end - begin, np.int64) for _ in range(3))
        for source, order in enumerate(self._orders):
            own = np.flatnonzero(sources == source)
            if not len(own):
                continue
            first = self._mixture.taken(source, begin)
            found = order.samples(first, first + len(own))
            epochs[own], offsets[own] = found.epochs, found.offsets
            files[own] = found.files + self._first_pieces[source]
        return Samples(epochs, files, offsets)

    def next_uses(self, position: int) -> NDArray[np.int64]:
        uses = (order.next_uses(self._mixture.taken(number, position)) for number, order in enumerate(self._orders))
        return np.concatenate([self._mixture.position(number, each) for number, each in enumerate(uses)])


def _chairmen(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """One period: at each position, of the sources that may take another sample, the one that must take it first."""
    period = int(counts.sum())
    taken = np.zeros(len(counts), np.int64)
    pattern = np.empty(period, np.int64)
    for position in range(period):
        # A source may have its next sample once its share at the next position exceeds what it has; it must have it by
        # the position where its share exceeds that by one.
        may = counts * (position + 1) > taken * period
        deadline = np.where(may, (taken + 1) * period / counts, np.inf)
        chosen = int(np.argmin(deadline))
        pattern[position] = chosen
        taken[chosen] += 1
    return pattern
