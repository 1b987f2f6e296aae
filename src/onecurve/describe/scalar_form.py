"""What a loss that returns a scalar means, as the trial before training has found it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ScalarForm:
    """How the scalar of a loss is weighted."""

    counted: bool = False
    """True if the scalar is the mean of one of torch's loss functions, and weighted by the count of that mean; False if
    it is a mean over samples."""
    per_sample: tuple[float, ...] | None = None
    """Counts of the means that the loss computes on the way, divided by the number of samples. The scalar is a mean
    over samples only as long as they stay the same. None if it is not known, or if the loss computes such means for
    each sample by itself."""
