"""LAMB and LARS against their papers' formulas for one parameter. `onecurve check` tests them on sharded plans."""

import math

import pytest
import torch

from onecurve.job.layerwise import LAMB, LARS


def test_lamb_matches_a_hand_worked_step() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
    optimizer = LAMB([weight], lr=0.1, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.01)
    weight.grad = torch.tensor([0.5, -2.0], dtype=torch.float64)
    optimizer.step()
    # After one step the bias-corrected mean is g and the bias-corrected square is g², so the direction is sign(g).
    update = [1 / (1 + 1e-6 / 0.5) + 0.03, -1 / (1 + 1e-6 / 2) + 0.04]
    ratio = 5.0 / math.hypot(*update)
    assert weight.tolist() == pytest.approx([3 - 0.1 * ratio * update[0], 4 - 0.1 * ratio * update[1]], rel=1e-9)


def test_lars_matches_two_hand_worked_steps() -> None:
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0], dtype=torch.float64))
    optimizer = LARS([weight], lr=2.0, momentum=0.9, weight_decay=0.1, trust=0.01)
    position, velocity = [3.0, 4.0], [0.0, 0.0]
    for gradient in ([0.6, 0.8], [1.0, 0.0]):
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        w, g = math.hypot(*position), math.hypot(*gradient)
        rate = 2.0 * 0.01 * w / (g + 0.1 * w)
        velocity = [0.9 * v + rate * (s + 0.1 * p) for v, s, p in zip(velocity, gradient, position, strict=True)]
        position = [p - v for p, v in zip(position, velocity, strict=True)]
    assert weight.tolist() == pytest.approx(position, rel=1e-9)


@pytest.mark.parametrize("kind", [LAMB, LARS])
def test_the_trust_ratio_is_one_for_a_zero_weight_and_without_adapt(kind) -> None:
    zero = torch.nn.Parameter(torch.zeros(2))
    plain = torch.nn.Parameter(torch.ones(2))
    optimizer = kind([{"params": [zero]}, {"params": [plain], "adapt": False}], lr=0.1, weight_decay=0.0)
    zero.grad, plain.grad = torch.ones(2), torch.ones(2)
    optimizer.step()
    assert zero.tolist() == pytest.approx([-0.1, -0.1], rel=1e-4)
    assert plain.tolist() == pytest.approx([0.9, 0.9], rel=1e-4)
