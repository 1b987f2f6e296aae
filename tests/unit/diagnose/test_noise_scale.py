"""The gradient noise scale of gradients whose noise is known."""

from dataclasses import replace

import pytest
import torch

from onecurve.diagnose.noise_scale import NoiseHistory
from synthetic_run import STEP


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_the_scale_is_the_noise_over_the_signal(parts: int) -> None:
    generator = torch.Generator().manual_seed(0)
    batch, size, noise = 32, 2000, 0.5
    true = torch.randn(size, generator=generator)
    history = NoiseHistory()
    for _ in range(200):
        samples = true + noise**0.5 * batch**0.5 * torch.randn(batch, size, generator=generator)
        means = samples.view(parts, batch // parts, size).mean(1)
        square = means.square().sum(1).mean().item()
        history.add(replace(STEP, gradient_norm=means.mean(0).norm().item(), parts=parts, part_square=square), batch)
    expected = noise * batch * size / true.square().sum().item()
    assert history.scale == pytest.approx(expected, rel=0.1)


def test_too_few_steps_say_nothing() -> None:
    history = NoiseHistory()
    for _ in range(5):
        history.add(replace(STEP, gradient_norm=1.0, parts=2, part_square=1.5), 8)
    assert history.scale is None


def test_gradients_without_noise_have_no_scale() -> None:
    history = NoiseHistory()
    for _ in range(100):
        history.add(replace(STEP, gradient_norm=1.0, parts=2, part_square=1.0), 8)
    assert history.scale is None
