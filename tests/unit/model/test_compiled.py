"""A model that the user compiled is split like the original one, and its parameters have the original names."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from onecurve.model.deferred import defer_init
from onecurve.model.recorder import build_real


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 2)))


def whole() -> nn.Module:
    return torch.compile(plain(), backend="eager")


def in_place() -> nn.Module:
    model = plain()
    model.compile(backend="eager")
    return model


def inside() -> nn.Module:
    model = plain()
    model[1][0] = torch.compile(model[1][0], backend="eager")
    model[1] = torch.compile(model[1], backend="eager")
    return model


def forward_only() -> nn.Module:
    model = plain()
    model.forward = torch.compile(model.forward, backend="eager")
    return model


@pytest.mark.parametrize("build", [whole, in_place, inside, forward_only])
def test_compile_is_taken_off(build: Callable[[], nn.Module]) -> None:
    deferred, expected = defer_init(build, seed=1), plain()
    assert ["torch.compile was taken off" in message for message in deferred.messages] == [True]
    for module in (deferred.module, build_real(build, seed=1)):
        assert [name for name, _ in module.named_parameters()] == [name for name, _ in expected.named_parameters()]
        assert [type(submodule) for submodule in module.modules()] == [type(child) for child in expected.modules()]
        assert all(submodule._compiled_call_impl is None for submodule in module.modules())
        assert not hasattr(module.forward, "_torchdynamo_orig_callable")


def test_nothing_is_said_about_a_model_that_was_not_compiled() -> None:
    assert defer_init(plain, seed=1).messages == []
