"""A sum and what it was taken over, so that parts add up to the whole whatever the split."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Weighted:
    """`Weighted(sum, count)`: the mean is sum / count, over all ranks and rounds. `count` takes no gradient."""

    sum: Tensor
    count: Tensor | float
