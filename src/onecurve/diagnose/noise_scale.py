"""The gradient noise scale: the batch size up to which larger batches need fewer steps.

The squared norm of a mean gradient over b samples is on average |G|² + tr(Σ)/b, where G is the true gradient and Σ the
covariance of single ones. From two sizes, a part of the batch and all of it, both terms follow; the noise scale is
tr(Σ)/|G|² (McCandlish et al., "An Empirical Model of Large-Batch Training"). Both terms are averaged over many steps
before they are divided: in a single step, either can be negative. The scale grows while the loss falls; what counts for
a training is its mean over the steps, so it is computed for several parts of a run.
"""

from array import array
from itertools import pairwise

from onecurve.describe.record import StepRecord

_LEAST_STEPS = 10
"""Fewer measured steps say little."""
_MOST_PARTS = 4


class NoiseHistory:
    """Both terms in each step in which they were measured."""

    def __init__(self) -> None:
        self._noise, self._signal = array("d"), array("d")

    def add(self, record: StepRecord, global_batch: int) -> None:
        if record.parts < 2 or record.skipped or not global_batch:
            return
        part = global_batch / record.parts
        whole_square = record.gradient_norm**2
        self._noise.append((record.part_square - whole_square) / (1 / part - 1 / global_batch))
        self._signal.append((global_batch * whole_square - part * record.part_square) / (global_batch - part))

    @property
    def scale(self) -> float | None:
        """In samples, the mean over the measured steps; None if it is not known, or if the gradients of a part of the
        run have no common direction. Parts become longer, because the scale changes most at the beginning."""
        edges = [len(self._noise)]
        while len(edges) < _MOST_PARTS and edges[0] // 2 >= _LEAST_STEPS:
            edges.insert(0, edges[0] // 2)
        if edges[0] < _LEAST_STEPS:
            return None
        total = 0.0
        for begin, end in pairwise([0, *edges]):
            noise, signal = sum(self._noise[begin:end]), sum(self._signal[begin:end])
            if noise <= 0 or signal <= 0:
                return None
            total += (end - begin) * noise / signal
        return total / len(self._noise)
