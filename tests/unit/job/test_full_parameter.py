"""Muon and Adafactor on full parameters are those of torch."""

import copy

import pytest
import torch
from torch import nn

import onecurve as oc
from onecurve.job.muon import orthogonalized


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4), nn.Unflatten(1, (2, 2)), nn.Conv1d(2, 3, 2))


def train(module: nn.Module, *optimizers: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    for _ in range(5):
        module.zero_grad()
        module(x).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return module.state_dict()


def test_adafactor_is_that_of_torch() -> None:
    ours, theirs = model(), model()
    settings = {"lr": 0.05, "weight_decay": 0.1}
    found = train(ours, oc.Adafactor(**settings)(list(ours.named_parameters())))
    expected = train(theirs, torch.optim.Adafactor(theirs.parameters(), **settings))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)


def test_muon_is_that_of_torch_and_adamw_for_the_rest() -> None:
    ours, theirs = model(), model()
    found = train(ours, oc.Muon(lr=0.02, adam="2.*", adam_lr=0.01)(list(ours.named_parameters())))
    rest = [parameter for name, parameter in theirs.named_parameters() if name != "0.weight"]
    muon = torch.optim.Muon([theirs[0].weight], lr=0.02, weight_decay=0.1)
    expected = train(theirs, muon, torch.optim.AdamW(rest, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1))
    for name, tensor in expected.items():
        tolerance = 1e-3 if name == "0.weight" else 1e-5  # bfloat16
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (1, 4)])
def test_an_orthogonal_update_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalized(matrix, 5))
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_a_schedule_scales_both_learning_rates() -> None:
    module = model()
    optimizer = oc.Muon(lr=0.02, adam_lr=0.01)(list(copy.deepcopy(module).named_parameters()))
    assert sorted(group["lr"] for group in optimizer.param_groups) == [0.01, 0.02]
