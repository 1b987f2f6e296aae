import math

import pytest
import torch
from torch import nn

from onecurve.device.local_tensor import local_tensor_of
from onecurve.train.step_report import factor, outcome, squares
from onecurve.train.update import can_skip_on_device


def pieces_of(module: nn.Module, first: bool = True):
    return [local_tensor_of(name, parameter, first) for name, parameter in module.named_parameters()]


def test_clipping_is_torchs_own() -> None:
    torch.manual_seed(0)
    module = nn.Linear(5, 3)
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter) * 10
    local_tensors = pieces_of(module)
    sums = torch.tensor([6.0, 4.0, squares(local_tensors), 0.0, 0.0], dtype=torch.float64)
    by = factor(sums, nominal=8, clip=0.3)
    ours = [parameter.grad * by for parameter in module.parameters()]
    for parameter in module.parameters():
        parameter.grad *= 8 / 4
    norm = nn.utils.clip_grad_norm_(module.parameters(), 0.3)
    for a, parameter in zip(ours, module.parameters(), strict=True):
        torch.testing.assert_close(a, parameter.grad, rtol=1e-5, atol=0, check_dtype=False)
    assert math.isclose(outcome(sums.tolist(), 8).gradient_norm, norm.item(), rel_tol=1e-5)


def test_a_small_gradient_is_not_clipped() -> None:
    sums = torch.tensor([1.0, 8.0, 0.01, 0.0], dtype=torch.float64)
    assert factor(sums, nominal=8, clip=1.0).item() == 1.0
    assert factor(sums, nominal=8, clip=None).item() == 1.0


def test_a_replica_that_is_not_the_first_counts_nothing() -> None:
    module = nn.Linear(5, 3)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert squares(pieces_of(module, first=True)).item() == pytest.approx(18)
    assert squares(pieces_of(module, first=False)).item() == 0


def test_what_is_not_finite() -> None:
    assert outcome([1.0, 8.0, 4.0, 0.0, 0.0], 8).finite
    assert not outcome([math.nan, 8.0, 4.0, 0.0, 0.0], 8).finite
    assert not outcome([1.0, 8.0, math.inf, 0.0, 0.0], 8).finite
    assert not outcome([0.0, 0.0, 0.0, 0.0, 0.0], 8).finite  # nothing was counted
    assert outcome([1.0, 8.0, 4.0, 1.0, 0.0], 8).stop


def test_which_optimizers_can_skip_by_themselves() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]
    assert can_skip_on_device(torch.optim.AdamW(parameters, fused=True))
    assert not can_skip_on_device(torch.optim.RMSprop(parameters))
