"""Recomputation does not change gradients."""

import copy

import pytest
import torch
from torch import Tensor, nn

from onecurve.apply.activation_checkpointing import checkpoint_blocks


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.out = kind(4, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(x)[0])


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_have_the_same_gradients(kind, mode) -> None:
    torch.manual_seed(0)
    module = Recurrent(kind).double()
    expected, x = copy.deepcopy(module), torch.randn(2, 3, 4).double()
    checkpoint_blocks(module, [""], mode)
    for each in (module, expected):
        each(x).square().sum().backward()
    for parameter, other in zip(module.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-12, atol=1e-12)
