"""A trial run of a model leaves no trace."""

import random

import torch
from torch import Tensor, nn

from onecurve.model.unchanged import unchanged


class Centered(nn.Module):
    """Changes one buffer in place, replaces another, and draws random numbers, in every mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.center.lerp_(x.mean(0), 0.1)
        self.calls = self.calls + 1
        return x + random.random() + torch.rand(())


def test_buffers_and_random_generators_are_restored() -> None:
    model = Centered()
    buffers = dict(model.named_buffers())
    state, python_state = torch.get_rng_state(), random.getstate()
    with unchanged(model):
        model(torch.ones(2, 3))
        assert model.calls == 1
    assert all(model.get_buffer(name) is buffer and not buffer.any() for name, buffer in buffers.items())
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state


def test_batch_norm_without_running_statistics_does_not_mix_samples() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.BatchNorm1d(3)).eval()
    x = torch.randn(6, 3)
    with unchanged(model):
        torch.testing.assert_close(model(x)[:2], model(x[:2]))
    assert not torch.allclose(model(x)[:2], model(x[:2]))
