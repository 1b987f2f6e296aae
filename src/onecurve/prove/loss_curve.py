"""Compares float32 loss curves.

Float32 runs of different plans cannot be equal bit for bit, and some models amplify rounding errors. A curve is
therefore compared with the spread of one-device runs whose initial weights were perturbed by less than the last digit.
"""

from collections.abc import Sequence

import torch
from torch import nn

PERTURBED_RUNS = 5
PERTURBATION = 1e-7
MAX_CURVE_EXCESS = 3.0
"""Largest distance from the reference, in units of the spread, that counts as equal."""
_MIN_RELATIVE_SPREAD = 4 * torch.finfo(torch.float32).eps  # rounding of the loss itself

Curve = Sequence[float]
"""The loss of each step."""


def perturb(module: nn.Module, seed: int, size: float = PERTURBATION) -> None:
    """Multiply every weight by 1 + size · noise, with normally distributed noise."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(parameter * (1 + size * noise.to(parameter.device)))


def curve_excess(curve: Curve, reference: Curve, perturbed: Sequence[Curve]) -> float:
    """Return the largest distance from the reference, in units of the spread of the perturbed runs up to that step.

    Infinite if a loss is NaN.
    """
    largest, spread = 0.0, 0.0
    for step, (loss, expected) in enumerate(zip(curve, reference, strict=True)):
        spread = max(spread, _MIN_RELATIVE_SPREAD * abs(expected), *(abs(run[step] - expected) for run in perturbed))
        distance = abs(loss - expected)
        if distance > 0 or distance != distance:  # a loss that equals the reference needs no spread
            excess = distance / spread if spread and distance == distance else float("inf")
            largest = max(largest, excess)
    return largest
