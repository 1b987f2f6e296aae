"""The gradient noise scale: the batch size up to which larger batches need fewer steps.

The squared norm of a mean gradient over b samples is on average |G|² + tr(Σ)/b, where G is the true gradient and Σ the
covariance of single ones. From two sizes, a part of the batch and all of it, both terms follow; the noise scale is
tr(Σ)/|G|² (McCandlish et al., "An Empirical Model of Large-Batch Training"). Both terms are averaged over many steps
before they are divided: in a single step, either can be negative.
"""

from array import array

from onecurve.describe.record import StepRecord

_LEAST_STEPS = 10
"""Fewer measured steps say little."""


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
        """In samples, over the second half of the run, because it grows while the loss falls; None if it is not known,
        or if the gradients have no common direction."""
        begin = len(self._noise) // 2
        noise, signal = sum(self._noise[begin:]), sum(self._signal[begin:])
        if len(self._noise) - begin < _LEAST_STEPS or noise <= 0 or signal <= 0:
            return None
        return noise / signal
