"""Float32 runs cannot be equal bit for bit, and some models are chaotic; so a curve is judged against the spread of
one-device runs whose initial weights were perturbed by less than the last digit."""

from collections.abc import Sequence

import torch
from torch import nn

PERTURBED_RUNS = 5
PERTURBATION = 1e-7
ALLOWED = 3.0
_FLOOR = 4 * torch.finfo(torch.float32).eps  # a loss is not known better than to its own rounding

Curve = Sequence[float]


def perturb(module: nn.Module, seed: int) -> None:
    """Multiply every weight by 1 ± 1e-7 (normal)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_((parameter.double() * (1 + PERTURBATION * noise)).to(parameter.dtype))


def excess(curve: Curve, reference: Curve, perturbed: Sequence[Curve]) -> float:
    """The largest distance from the reference, in units of the spread so far; ALLOWED is the most that holds."""
    largest, spread = 0.0, 0.0
    for step, (loss, expected) in enumerate(zip(curve, reference, strict=True)):
        spread = max(spread, _FLOOR * abs(expected), *(abs(run[step] - expected) for run in perturbed))
        distance = abs(loss - expected)
        largest = max(largest, distance / spread) if distance == distance else float("inf")
    return largest
