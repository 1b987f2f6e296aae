"""The sample order of a training with a warm-up on a part of the data."""

import math

import numpy as np

from onecurve.data.order import Integers, Order, Samples


class WarmUpOrder(Order):
    """Begins with the first samples of an order, again and again; after the warm-up, the order begins anew."""

    def __init__(self, order: Order, warmup: int, part: float) -> None:
        """`warmup`: positions of the warm-up. `part`: of the samples of an epoch that are used in it."""
        self._order, self._warmup = order, warmup
        self.size, self.text = order.size, order.text
        self._repeated = max(1, math.ceil(part * order.size))

    def samples(self, begin: int, end: int) -> Samples:
        if begin >= self._warmup:
            return self._order.samples(begin - self._warmup, end - self._warmup)
        pieces: list[Samples] = []
        while begin < min(end, self._warmup) or not pieces:
            first = begin % self._repeated
            length = min(min(end, self._warmup) - begin, self._repeated - first)
            pieces.append(self._order.samples(first, first + length))
            begin += length
        if end > self._warmup:
            pieces.append(self._order.samples(0, end - self._warmup))
        columns = ([getattr(piece, name) for piece in pieces] for name in ("epochs", "files", "offsets"))
        return Samples(*map(np.concatenate, columns))

    def next_uses(self, position: int) -> Integers:
        if position >= self._warmup:
            return self._order.next_uses(position - self._warmup) + self._warmup
        return np.maximum(self._order.next_uses(0), position)
