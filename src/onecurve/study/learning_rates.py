"""What a run with a growing learning rate shows."""

import math
from collections.abc import Sequence

Point = tuple[float, float]
_MEMORY = 0.9
"""Weight of the earlier losses in the smoothed one."""
_DIVERGED = 4.0
"""Losses above so many times the smallest one are left out: the weights are lost by then."""


def smoothed(losses: Sequence[Point]) -> list[Point]:
    """(learning rate, smoothed loss), up to where the training diverges. `losses`: (learning rate, loss)."""
    mean = 0.0
    smooth: list[Point] = []
    for number, (rate, loss) in enumerate(losses, start=1):
        if not math.isfinite(loss):
            break
        mean = _MEMORY * mean + (1 - _MEMORY) * loss
        value = mean / (1 - _MEMORY**number)
        if smooth and value > _DIVERGED * min(point[1] for point in smooth):
            break
        smooth.append((rate, value))
    return smooth


def steepest(smooth: Sequence[Point]) -> float:
    """The learning rate at which the loss falls fastest, over the logarithm of the rate."""
    width = max(1, len(smooth) // 20)
    slopes = [
        ((smooth[n + width][1] - smooth[n - width][1]) / math.log(smooth[n + width][0] / smooth[n - width][0]), n)
        for n in range(width, len(smooth) - width)
    ]
    return smooth[min(slopes)[1]][0]
