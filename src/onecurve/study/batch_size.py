"""What another batch size would cost, from the gradient noise scale.

To reach the same loss, a training with batch B needs about 1 + N/B times as many steps as one with an endless batch,
and 1 + B/N times as many samples as one with single samples, where N is the noise scale (McCandlish et al., "An
Empirical Model of Large-Batch Training").
"""

import math

_POWERS = range(-4, 5)
"""A suggestion changes the batch by at most a factor of 16: the learning rate could not follow further."""


def suggested_batch(batch: int, noise_scale: float) -> int:
    """`batch` times the power of two that comes closest to the noise scale: there, steps and samples are balanced."""
    candidates = [batch * 2.0**power for power in _POWERS]
    whole = [round(candidate) for candidate in candidates if candidate.is_integer()]
    return min(whole, key=lambda candidate: abs(math.log(candidate / noise_scale)))


def steps_factor(before: int, after: int, noise_scale: float) -> float:
    """How many steps another batch needs, over those of this one."""
    return (1 + noise_scale / after) / (1 + noise_scale / before)


def suggested_lr(lr: float, before: int, after: int, rule: str) -> float:
    """The learning rate of another batch, by the rule `linear` or `square root`."""
    factor = after / before
    return lr * (factor if rule == "linear" else math.sqrt(factor))
