"""Buffers that forward changes are put back for a skipped step and for a recomputation."""

import copy

import pytest
import torch
from torch import Tensor, nn

from onecurve.apply.activation_checkpointing import checkpoint_blocks
from onecurve.apply.running_buffers import RunningBuffers


class Center(nn.Module):
    """Subtracts a running mean of its inputs; `replaces`: forward registers another tensor under the name."""

    def __init__(self, replaces: bool) -> None:
        super().__init__()
        self.replaces, self.linear = replaces, nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            new = 0.5 * self.mean + x.mean(0)
            if self.replaces:
                self.mean = new
            else:
                self.mean.copy_(new)
        return torch.tanh(self.linear(x - self.mean))


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("where", [True, torch.tensor(True)])
def test_a_skipped_step_leaves_the_buffers_as_they_were(replaces: bool, where: Tensor | bool) -> None:
    model = Center(replaces)
    buffers = RunningBuffers(model, ["mean"])
    model(torch.ones(2, 3))
    buffers.save()
    model(torch.full((2, 3), torch.nan))
    buffers.restore(where)
    assert model.mean.tolist() == [1.0, 1.0, 1.0]
    model(torch.ones(2, 3))
    buffers.restore(torch.tensor(False))
    assert model.mean.tolist() == [1.5, 1.5, 1.5]


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("mode", ["full", "selective"])
def test_a_recomputation_sees_the_values_of_the_first_run(replaces: bool, mode: str) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(Center(replaces), Center(replaces))
    recomputed = copy.deepcopy(plain)
    checkpoint_blocks(recomputed, ["0", "1"], mode, ["0.mean", "1.mean"])  # type: ignore[arg-type]
    for _ in range(2):
        x = torch.randn(4, 3)
        for model in (plain, recomputed):
            model(x).square().sum().backward()
    for (name, parameter), expected in zip(recomputed.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, msg=name)
    for buffer, expected in zip(recomputed.buffers(), plain.buffers(), strict=True):
        assert torch.equal(buffer, expected)
