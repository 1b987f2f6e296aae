"""A fake tensor that got into a real run is an error that names the module, and never a wrong number or a crash."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from onecurve.describe.errors import OnecurveError
from onecurve.model.fake_mode import GuardedFakeMode, refuse_fake_tensors


class Leaky(nn.Module):
    """Uses a tensor from a cache outside the module."""

    def __init__(self, cached: Tensor) -> None:
        super().__init__()
        self.cache = lambda: cached

    def forward(self, x: Tensor) -> Tensor:
        return x.copy_(self.cache())


def leaked_tensor() -> Tensor:
    with GuardedFakeMode():
        return torch.zeros(10)[3:]


def test_a_leaked_tensor_is_refused_with_the_name_of_the_module() -> None:
    model = nn.Sequential(nn.Identity(), Leaky(leaked_tensor()))
    with (
        refuse_fake_tensors(),
        pytest.raises(OnecurveError, match=r"module '1' \(Leaky\): aten.copy_.*register_buffer"),
    ):
        model(torch.ones(7))


def test_a_parameter_that_this_rank_does_not_hold_is_refused_as_such() -> None:
    model = nn.Sequential(Leaky(nn.Parameter(leaked_tensor(), requires_grad=False)))
    with (
        refuse_fake_tensors(),
        pytest.raises(OnecurveError, match=r"module '0' \(Leaky\): aten.copy_.* a parameter .* another axis"),
    ):
        model(torch.ones(7))


def test_a_mode_that_is_entered_explicitly_works_during_a_real_run() -> None:
    mode = GuardedFakeMode()
    with mode:
        fake = torch.ones(3)
    with refuse_fake_tensors(), mode:
        assert (fake + torch.ones(3))[1:].shape == (2,)
    assert isinstance(fake + 1, FakeTensor)  # outside a real run torch enters the mode by itself


def test_the_memory_behind_a_fake_tensor_cannot_be_read() -> None:
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        leaked_tensor().data_ptr()


def test_a_view_with_an_offset_can_be_deep_copied() -> None:
    """torch's own deep copy ends the process with a segmentation fault."""
    original = leaked_tensor()
    copied = copy.deepcopy([original, original])
    assert isinstance(copied[0], FakeTensor)
    assert copied[0].shape == (7,)
    assert copied[0] is copied[1]
    assert copied[0] is not original


def test_a_deep_copy_of_a_module_keeps_what_torch_keeps() -> None:
    """torch copies a parameter without its attributes, and any other tensor with them."""
    real = nn.BatchNorm1d(3)
    with GuardedFakeMode():
        fake = nn.BatchNorm1d(3)
    for module in (real, fake):
        module.weight.mark = module.running_mean.mark = "mine"
        copied = copy.deepcopy(module.requires_grad_(False))
        assert isinstance(copied.weight, nn.Parameter)
        assert not copied.weight.requires_grad
        assert not hasattr(copied.weight, "mark")
        assert copied.running_mean.mark == "mine"
        assert isinstance(copied.running_mean, FakeTensor) == (module is fake)
        assert copied.running_mean is not module.running_mean
