"""The order of a stream: the sample at a position is the next one of its lane."""

import numpy as np

from onecurve.data.order import Integers, Order, Samples
from onecurve.describe.plan import Plan


class StreamOrder(Order):
    """Lanes take turns. The ranks divide the samples of a step by lanes, so that each reads few of them."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self.size = 1 << 62
        self.text = f"a stream of {lanes} lanes"

    def samples(self, begin: int, end: int) -> Samples:
        return self._at(np.arange(begin, end))

    def share(self, plan: Plan, data_rank: int, position: int, round_number: int) -> Samples:
        of_step = np.arange(position, position + plan.global_batch)
        by_lane = of_step[np.argsort(of_step % self._lanes, kind="stable")]
        first, last = plan.share(data_rank)
        begin = first * plan.rounds + round_number * (last - first)
        return self._at(by_lane[begin : begin + last - first])

    def next_uses(self, position: int) -> Integers:
        return np.full(self._lanes, position)

    def _at(self, positions: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Samples:
        return Samples(np.zeros_like(positions), positions % self._lanes, positions // self._lanes)
