"""Gradient hooks run once per step, on the gradient of the mean loss of the whole batch."""

import pytest
import torch
from torch import nn

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.device.gradient_hooks import take_gradient_hooks
from onecurve.device.local_tensor import local_tensor_of
from onecurve.train.hooked_gradients import HookedGradients


def clip(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-0.5, 0.5)


def hooked(module: nn.Module) -> HookedGradients:
    hooks = take_gradient_hooks(module)
    return HookedGradients(hooks, [local_tensor_of(name, each, True) for name, each in module.named_parameters()], None)


def test_hooks_see_the_mean_and_the_gradient_keeps_its_unit() -> None:
    module, seen = nn.Linear(2, 1, bias=False), []
    module.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    module.weight.register_hook(lambda gradient: gradient * 2)
    module.weight.register_post_accumulate_grad_hook(clip)
    hooks = hooked(module)
    module(torch.ones(1, 2)).sum().backward()
    module.weight.grad = torch.tensor([[8.0, 1.0]])  # of a loss sum, which is divided by 8
    hooks.run(torch.tensor(1 / 8))
    assert seen[0].tolist() == [[1.0, 0.125]]
    assert module.weight.grad.tolist() == [[4.0, 2.0]]  # 0.5 and 0.25, times 8


def test_a_parameter_without_a_gradient_runs_no_hook() -> None:
    module = nn.Linear(2, 1)
    module.bias.register_hook(lambda _: pytest.fail("it has no gradient"))
    hooked(module).run(torch.tensor(1.0))


def test_hooks_that_were_taken_off_do_not_run_in_backward() -> None:
    module = nn.Linear(2, 1)
    handle = module.weight.register_hook(lambda gradient: gradient * 10)
    hooks = take_gradient_hooks(module)
    module(torch.ones(1, 2)).sum().backward()
    assert module.weight.grad.tolist() == [[1.0, 1.0]]
    assert hooks["weight"]
    handle.remove()
    assert not hooks["weight"]


def test_hooks_that_update_or_fail_are_refused_by_name() -> None:
    for hook, error, message in (
        (
            lambda parameter: setattr(parameter, "grad", None),
            OnecurveError,
            "a hook of parameter 'weight'.*Job.optimizer",
        ),
        (lambda parameter: parameter.missing, UserCodeError, "hook of parameter 'weight' raised AttributeError"),
    ):
        module = nn.Linear(1, 1, bias=False)
        module.weight.register_post_accumulate_grad_hook(hook)
        hooks = hooked(module)
        module.weight.grad = torch.ones(1, 1)
        with pytest.raises(error, match=message):
            hooks.run(torch.tensor(1.0))
