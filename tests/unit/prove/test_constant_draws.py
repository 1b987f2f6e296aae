"""Random numbers in forward become constants that do not depend on the batch."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onecurve.prove.constant_draws import ConstantDraws

DRAWS = {
    "rand": lambda x: torch.rand(x.shape[0], 1),
    "randn_like": torch.randn_like,
    "normal": lambda x: torch.normal(0.0, 1.0, x.shape),
    "normal of tensors": lambda x: torch.normal(x, x.abs()),
    "randint": lambda x: torch.randint(3, 9, x.shape),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.8),
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 1),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "exponential_": lambda x: torch.empty_like(x).exponential_(),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 2),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=True),
    "numpy": lambda x: torch.tensor(np.random.rand(*x.shape)),
    "numpy choice": lambda x: torch.tensor([np.random.choice(5, 2, replace=False) for _ in x]),
    "python": lambda x: torch.tensor([random.random() for _ in x]),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_the_same_for_a_whole_batch_and_its_parts(name: str) -> None:
    values = torch.linspace(-2, 2, 12).view(4, 3)
    draw = DRAWS[name]
    draws = ConstantDraws()
    with draws:
        whole, parts = draw(values), torch.cat([draw(values[:1]), draw(values[1:])])
    assert torch.equal(whole, parts)
    assert draws.triggered
    again, once_more = draw(values), draw(values)  # outside, draws are random again
    assert name in ("gumbel_softmax", "numpy choice", "bernoulli", "bernoulli_") or not torch.equal(again, once_more)


def test_the_generators_do_not_move() -> None:
    before = torch.get_rng_state()
    with ConstantDraws():
        torch.rand(5), torch.empty(3).normal_()
    assert torch.equal(before, torch.get_rng_state())


def test_draws_are_real_while_paused() -> None:
    draws = ConstantDraws()
    with draws, draws.paused():
        assert len(torch.rand(8).unique()) > 1
        assert len(np.unique(np.random.rand(8))) > 1
    assert not draws.triggered


def test_draws_are_constant_in_recomputed_blocks_too() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rand_like(x)

    x = torch.ones(4, requires_grad=True)
    with ConstantDraws():
        torch.utils.checkpoint.checkpoint(Noisy(), x, use_reentrant=False, preserve_rng_state=False).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 0.5))
    assert random.random() != random.random()
