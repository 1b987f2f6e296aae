import math

import pytest
import torch
from torch import nn

from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.device import local_device
from onecurve.device.local_tensor import local_tensor_of
from onecurve.train.averages import Averages
from onecurve.train.step_flags import StepFlags
from onecurve.train.step_report import StepReport, gradient_factor, gradient_squares, outcome
from onecurve.train.update import OptimizerUpdate, can_skip_on_device


def local_tensors_of(module: nn.Module, is_first_holder: bool = True):
    return [local_tensor_of(name, parameter, is_first_holder) for name, parameter in module.named_parameters()]


def test_clipping_matches_torch() -> None:
    torch.manual_seed(0)
    module = nn.Linear(5, 3)
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter) * 10
    local_tensors = local_tensors_of(module)
    sums = torch.tensor([6.0, 4.0, gradient_squares(local_tensors), *[0.0] * 6], dtype=torch.float64)
    scale = gradient_factor(sums, nominal=8, clip=0.3)
    ours = [parameter.grad * scale for parameter in module.parameters()]
    for parameter in module.parameters():
        parameter.grad *= 8 / 4
    norm = nn.utils.clip_grad_norm_(module.parameters(), 0.3)
    for a, parameter in zip(ours, module.parameters(), strict=True):
        torch.testing.assert_close(a, parameter.grad, rtol=1e-5, atol=0, check_dtype=False)
    assert math.isclose(outcome(sums.tolist(), 8).gradient_norm, norm.item(), rel_tol=1e-5)


def test_a_small_gradient_is_not_clipped() -> None:
    sums = torch.tensor([1.0, 8.0, 0.01, 0.0], dtype=torch.float64)
    assert gradient_factor(sums, nominal=8, clip=1.0).item() == 1.0
    assert gradient_factor(sums, nominal=8, clip=None).item() == 1.0


def test_a_rank_that_is_not_the_first_holder_adds_nothing_to_the_norm() -> None:
    module = nn.Linear(5, 3)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert gradient_squares(local_tensors_of(module, is_first_holder=True)).item() == pytest.approx(18)
    assert gradient_squares(local_tensors_of(module, is_first_holder=False)).item() == 0


def test_steps_without_a_finite_loss_and_norm_are_detected() -> None:
    assert outcome([1.0, 8.0, 4.0, *[0.0] * 6], 8).finite
    assert not outcome([math.nan, 8.0, 4.0, *[0.0] * 6], 8).finite
    assert not outcome([1.0, 8.0, math.inf, *[0.0] * 6], 8).finite
    assert not outcome([0.0, 0.0, 0.0, *[0.0] * 6], 8).finite  # the count is 0
    assert outcome([1.0, 8.0, 4.0, 1.0, *[0.0] * 5], 8).stop


def test_a_snapshot_waits_for_every_rank() -> None:
    due, blocked = (StepFlags(snapshot=lambda: True), StepFlags(snapshot_blocked=lambda: True))
    sums = torch.tensor([1.0, 8.0, 4.0])
    assert outcome(torch.cat([sums, due.answers(sums)]).tolist(), 8).snapshot
    assert not outcome(torch.cat([sums, due.answers(sums) + blocked.answers(sums)]).tolist(), 8).snapshot


def test_only_fused_optimizers_can_skip_on_the_device() -> None:
    parameters = [nn.Parameter(torch.zeros(1))]
    assert can_skip_on_device(torch.optim.AdamW(parameters, fused=True))
    assert not can_skip_on_device(torch.optim.RMSprop(parameters))


def test_a_fused_optimizer_is_right_for_gradients_with_other_strides() -> None:
    """As the backward of a pipeline that is split into two parts leaves them."""
    torch.manual_seed(0)
    parameter, gradient = nn.Parameter(torch.randn(3, 5)), torch.randn(5, 3).t()
    expected = nn.Parameter(parameter.detach().clone())
    expected.grad = gradient.contiguous()
    torch.optim.AdamW([expected], lr=0.1).step()
    update = OptimizerUpdate(
        lambda named: torch.optim.AdamW([p for _, p in named], lr=0.1, fused=True),
        [local_tensor_of("weight", parameter, True)],
        None,
        local_device(0),
        Plan(),
    )
    parameter.grad = gradient
    sums = torch.tensor([1.0, 8.0, 1.0, *[0.0] * 6], dtype=torch.float64)
    update.apply(StepReport(step=1, lr=0.1, samples=8, loss_scale=1.0, nominal=8, sums=sums), clip=None)
    torch.testing.assert_close(parameter, expected)


class Decaying(torch.optim.SGD):
    """Changes its own learning rate, which the job's schedule would overwrite."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 0.9


class NeedsAClosure(torch.optim.SGD):
    def step(self, closure=None):
        assert closure is not None, "SAM needs a closure"


def one_step(factory) -> None:
    module = nn.Linear(2, 1)
    update = OptimizerUpdate(factory, local_tensors_of(module), None, local_device(0), Plan())
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    sums = torch.tensor([1.0, 8.0, 1.0, *[0.0] * 6], dtype=torch.float64)
    update.apply(StepReport(step=1, lr=0.1, samples=8, loss_scale=1.0, nominal=8, sums=sums), None)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Decaying, r"step\(\) of Decaying changed its learning rate.*Job\(schedule=…\)"),
        (NeedsAClosure, r"NeedsAClosure evaluates the loss several times in a step"),
        (torch.optim.LBFGS, r"LBFGS evaluates the loss several times in a step"),
    ],
)
def test_optimizers_that_train_something_else_are_refused(kind: type, message: str) -> None:
    with pytest.raises(OnecurveError, match=message):
        one_step(lambda named: kind([parameter for _, parameter in named], lr=0.1))


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.Adam(p, lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True)]
)
def test_a_parameter_that_is_used_late_is_averaged_from_its_first_weights(make) -> None:
    module = nn.Linear(2, 2)
    start = module.bias.detach().clone()
    tensors = local_tensors_of(module)
    update = OptimizerUpdate(lambda named: make([p for _, p in named]), tensors, None, local_device(0), Plan())
    averages = Averages(0.9, update.optimizer, tensors)
    for step in range(3):
        module.weight.grad = torch.ones_like(module.weight)
        module.bias.grad = torch.ones_like(module.bias) if step == 2 else None
        averages.begin_update()
        update.optimizer.step()
        averages.update(False)
    found = {tensor.name: average for tensor, average in averages.local_tensors(tensors)}
    torch.testing.assert_close(found["bias"], 0.9 * start + 0.1 * module.bias.detach())
