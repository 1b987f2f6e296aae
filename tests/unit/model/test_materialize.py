"""Fake tensors become real ones in place, with the requested dtype, device and memory format."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from onecurve.describe.errors import OnecurveError
from onecurve.model.deferred import DeferredModel, defer_init
from onecurve.model.materialize import Materializer
from onecurve.model.recorder import build_real
from onecurve.model.shared_memory import find_shared_memory, kept_whole

CPU = torch.device("cpu")


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.linear = nn.Linear(4, 2).requires_grad_(False)
        self.linear.weight.is_sensitive = True  # type: ignore[attr-defined]
        self.register_buffer("phases", torch.polar(torch.ones(3), torch.rand(3)))
        self.register_buffer("positions", torch.arange(3))
        self.register_buffer("absent", None)
        self.constants = (torch.rand(2), "text", [torch.rand(1)])


def materialize(
    deferred: DeferredModel,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.preserve_format,
) -> nn.Module:
    Materializer(deferred.recorder, CPU, dtype, memory_format).materialize(deferred.module)
    return deferred.module


def test_without_a_dtype_every_tensor_is_that_of_the_constructor() -> None:
    module, real = materialize(defer_init(Mixed, seed=2)), build_real(Mixed, 2)
    assert module.state_dict().keys() == real.state_dict().keys()
    for name, expected in real.state_dict().items():
        actual = module.state_dict()[name]
        assert not isinstance(actual, FakeTensor), name
        assert actual.dtype == expected.dtype, name
        assert torch.equal(actual, expected), name
    assert module.absent is None
    assert torch.equal(module.constants[0], real.constants[0])
    assert torch.equal(module.constants[2][0], real.constants[2][0])
    assert isinstance(module.constants, tuple)


def test_a_dtype_applies_to_floating_point_tensors_only() -> None:
    module = materialize(defer_init(Mixed, seed=2), torch.float64)
    assert module.conv.weight.dtype == torch.float64
    assert module.constants[0].dtype == torch.float64
    assert module.phases.dtype == torch.complex128
    assert module.positions.dtype == torch.int64
    module = materialize(defer_init(Mixed, seed=2), torch.bfloat16)
    assert module.conv.weight.dtype == torch.bfloat16
    assert module.phases.dtype == torch.complex64  # there is no smaller complex dtype to convert to


def test_requires_grad_and_user_attributes_are_preserved() -> None:
    module = materialize(defer_init(Mixed, seed=2), torch.float64)
    assert isinstance(module.linear.weight, nn.Parameter)
    assert module.conv.weight.requires_grad
    assert not module.linear.weight.requires_grad
    assert module.linear.weight.is_sensitive
    assert not hasattr(module.linear.weight, "fake_mode")


def test_channels_last_applies_to_four_dimensional_tensors_only() -> None:
    module = materialize(defer_init(Mixed, seed=2), memory_format=torch.channels_last)
    assert module.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert not module.conv.weight.is_contiguous()
    assert module.linear.weight.is_contiguous()
    assert torch.equal(module.conv.weight, build_real(Mixed, 2).conv.weight)


@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_a_real_module_is_converted_and_its_ties_are_preserved(dtype: torch.dtype | None) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    values = module[0].weight.detach().clone()
    Materializer(None, CPU, dtype).materialize(module)
    assert module[1].weight is module[0].weight
    assert torch.equal(module[0].weight, values.to(dtype or torch.float32))


def test_materializing_twice_changes_nothing() -> None:
    deferred = defer_init(Mixed, seed=2)
    materializer = Materializer(deferred.recorder, CPU)
    materializer.materialize(deferred.module)
    weight = deferred.module.conv.weight
    with torch.no_grad():
        weight.zero_()
    materializer.materialize(deferred.module)
    assert deferred.module.conv.weight is weight


def test_only_the_given_submodule_becomes_real() -> None:
    """A sharded model is materialized block by block, so that it never needs the memory of the full model."""
    deferred = defer_init(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), seed=2)
    Materializer(deferred.recorder, CPU).materialize(deferred.module[1])
    assert isinstance(deferred.module[0].weight, FakeTensor)
    assert not isinstance(deferred.module[1].weight, FakeTensor)


class Slotted(nn.Parameter):
    """A class by which a user's forward or optimizer decides."""


def clip(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(max=0.5)


class Carried(nn.Module):
    """What a constructor sets besides values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight.data = self.first.weight.data
        self.row = self.first.weight.data[0]
        self.register_buffer("bias_now", self.first.bias.detach())
        halves = torch.randn(2, 3)
        self.low, self.high = nn.Parameter(halves[0]), nn.Parameter(halves[1])
        self.low._no_weight_decay = True
        self.low.mask = torch.ones(3)
        self.handle = self.low.register_hook(lambda gradient: gradient * 2)
        self.high.register_post_accumulate_grad_hook(clip)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_what_a_constructor_sets_on_tensors_survives(real: bool, dtype: torch.dtype | None) -> None:
    deferred = None if real else defer_init(Carried, seed=1)
    model = build_real(Carried, 1) if deferred is None else deferred.module
    Materializer(deferred.recorder if deferred else None, CPU, dtype).materialize(model)
    assert isinstance(model, Carried)
    with torch.no_grad():
        model.first.weight.fill_(3.0)
        model.first.bias.fill_(4.0)
    assert model.second.weight.eq(3.0).all()
    assert model.row.eq(3.0).all()
    assert model.bias_now.eq(4.0).all()
    assert [group.names for group in find_shared_memory(model)] == [
        ("first.weight", "second.weight", "row"),
        ("first.bias", "bias_now"),
    ]
    assert model.low._no_weight_decay is True
    assert (model.low.mask.dtype, type(model.low.mask)) == (dtype or torch.float32, torch.Tensor)
    (model.low + model.high).sum().backward()
    assert model.low.grad.tolist() == [2.0] * 3
    assert model.high.grad.tolist() == [0.5] * 3
    model.handle.remove()
    model.low.grad = None
    model.low.sum().backward()
    assert model.low.grad.tolist() == [1.0] * 3


def test_a_class_derived_from_parameter_stays() -> None:
    class Gain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = Slotted(torch.ones(2))

    deferred = defer_init(Gain, seed=1)
    Materializer(deferred.recorder, CPU, torch.float64).materialize(deferred.module)
    assert type(deferred.module.gain) is Slotted
    assert "every rank builds it in full" in deferred.messages[0]
    assert "'gain' is a Slotted" in kept_whole(deferred.module)


def test_a_lazy_module_is_refused_by_name() -> None:
    with pytest.raises(OnecurveError, match=r"left '0\.weight' without a shape.*nn\.Linear\(in_features"):
        defer_init(lambda: nn.Sequential(nn.LazyLinear(2)), seed=1)
