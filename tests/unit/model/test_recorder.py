"""Initial weights depend only on the seed and the model, and need no memory until they are materialized."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.model.deferred import defer_init
from onecurve.model.materialize import Materializer
from onecurve.model.recorder import build_real, record


class Odd(nn.Module):
    """Does everything that constructors of real models do."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8, padding_idx=0)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(3))
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2)  # deep copies of its argument
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)))
        self.norm = nn.BatchNorm1d(8)
        self.scale = nn.Parameter(torch.tensor(2.0))
        nn.init.trunc_normal_(self.layers[0].linear1.weight, std=0.02)
        nn.init.orthogonal_(self.layers[1].linear1.weight)
        with torch.no_grad():
            self.layers[2].linear1.weight.mul_(0.5)
            self.layers[2].linear1.bias[2:5] = 7
            self.layers[2].linear2.weight.copy_(torch.randn(8, 16).abs())
        self.lstm = nn.LSTM(8, 8)
        if self.layers[0].linear1.weight.sum() > 0:  # reads a value
            self.extra = nn.Linear(3, 3)
        self.weight_norm = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.from_numpy = nn.Parameter(torch.from_numpy(np.random.randn(3).astype("float32")))
        self.drawn_out = nn.Parameter(torch.normal(torch.zeros(3), torch.ones(3), out=torch.empty(3)))
        self.own_generator = nn.Parameter(torch.randn(3, generator=torch.Generator().manual_seed(3)))
        self.frequencies = 1 / (10000 ** (torch.arange(0, 8, 2).float() / 8))


def tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers()])


def test_replayed_tensors_are_bit_equal_to_the_seeded_constructor() -> None:
    module, recorder = record(Odd, seed=5)
    real = build_real(Odd, seed=5)
    for name, expected in tensors(real).items():
        assert torch.equal(recorder.value(tensors(module)[name]), expected), name
    assert torch.equal(recorder.value(module.frequencies), real.frequencies)


def test_a_tensor_is_the_same_whatever_else_is_replayed() -> None:
    module, recorder = record(Odd, seed=5)
    alone = recorder.value(module.layers[2].linear2.weight)
    for tensor in tensors(module).values():
        recorder.value(tensor)
    assert torch.equal(recorder.value(module.layers[2].linear2.weight), alone)


def test_another_seed_gives_other_weights() -> None:
    assert not torch.equal(build_real(Odd, 5).head.weight, build_real(Odd, 6).head.weight)


def test_the_callers_generators_are_not_changed() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    module, recorder = record(Odd, seed=5)
    recorder.value(module.head.weight)
    build_real(Odd, seed=5)
    assert torch.equal(before, torch.get_rng_state())


def test_materialize_preserves_ties_attributes_and_unregistered_tensors() -> None:
    def build() -> nn.Module:
        module = Odd()
        module.scale.mark = "mine"
        return module

    deferred = defer_init(build, seed=5)
    materializer = Materializer(deferred.recorder, torch.device("cpu"), torch.float64)
    materializer.materialize(deferred.module.layers)  # in two calls, as a sharded model does with its blocks
    materializer.materialize(deferred.module)
    module, real = deferred.module, build_real(Odd, 5).double()
    for name, expected in tensors(real).items():
        assert torch.equal(tensors(module)[name], expected), name
    assert module.head.weight is module.words.weight
    assert module.scale.mark == "mine"
    assert torch.equal(module.frequencies, real.frequencies.double())
    x = torch.randn(5, 2, 8, dtype=torch.float64)
    assert torch.equal(module.lstm(x)[0], real.lstm(x)[0])


def test_a_trillion_parameters_can_be_deferred() -> None:
    deferred = defer_init(lambda: nn.Sequential(*[nn.Linear(100_000, 100_000, bias=False) for _ in range(100)]), seed=0)
    assert deferred.parameter_bytes == 4 * 10**12


def test_a_constructor_that_cannot_be_recorded_is_built_on_every_rank() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(20))
            self.chosen = nn.Parameter(self.weight.detach()[self.weight > 0])  # its shape depends on values

    deferred = defer_init(Counts, seed=1)
    assert deferred.recorder is None
    assert "could not be recorded" in deferred.warning
    assert torch.equal(deferred.module.weight, build_real(Counts, 1).weight)


def test_a_module_can_be_converted_in_its_constructor() -> None:
    def build() -> nn.Module:
        module = nn.Linear(3, 2)
        module.weight.mark = "mine"
        return module.to(torch.bfloat16)

    module, recorder = record(build, seed=1)
    assert torch.equal(recorder.value(module.weight), build_real(build, 1).weight)
    assert recorder.value(module.weight).dtype == torch.bfloat16
    assert module.weight.mark == "mine"


def test_what_a_constructor_does_in_a_thread_pool_is_recorded() -> None:
    def build() -> nn.Module:
        module = nn.Linear(3, 2)
        with ThreadPoolExecutor() as pool, torch.no_grad():
            module.weight.copy_(pool.submit(torch.full, (2, 3), 4.0).result())
        return module

    module, recorder = record(build, seed=1)
    assert torch.equal(recorder.value(module.weight), torch.full((2, 3), 4.0))


def test_a_parameter_that_is_left_on_the_meta_device_is_refused() -> None:
    with pytest.raises(OnecurveError, match=r"model\(\) left 'weight' on the meta device"):
        defer_init(lambda: nn.Linear(3, 2, device="meta"), seed=1)


def test_changes_to_a_tensor_from_outside_the_constructor_are_kept() -> None:
    outside = torch.ones(4, 3)

    def build() -> nn.Module:
        module = nn.Embedding.from_pretrained(outside.clone())
        with torch.no_grad():
            module.weight[0].zero_()
        return module

    deferred = defer_init(build, seed=1)
    Materializer(deferred.recorder, torch.device("cpu")).materialize(deferred.module)
    assert deferred.module.weight[0].tolist() == [0.0] * 3


def test_the_materializer_does_not_keep_tensors_alive() -> None:
    """The full parameters of a block must be freed once it is sharded."""
    deferred = defer_init(lambda: nn.Linear(3, 2), seed=1)
    materializer = Materializer(deferred.recorder, torch.device("cpu"))
    materializer.materialize(deferred.module)
    weight = weakref.ref(deferred.module.weight)
    del deferred.module._parameters["weight"]
    assert weight() is None


def test_an_exception_in_the_constructor_is_a_user_code_error() -> None:
    with pytest.raises(UserCodeError, match=r"model\(\) raised TypeError"):
        defer_init(lambda: nn.Linear(3), seed=0)


class OnDevice(nn.Module):
    """Names a device in every way that a constructor can, or none."""

    def __init__(self, device: str | None) -> None:
        super().__init__()
        named = {"device": device} if device else {}
        self.linear = nn.Linear(3, 3, **named)
        self.drawn = nn.Parameter(torch.randn(3, **({"device": 0} if device else {})))
        moved = nn.Linear(3, 3)
        self.moved = moved.to(f"{device}:1") if device else moved
        method = nn.Linear(3, 3)
        self.method = method.cuda() if device else method
        with torch.device(device or "cpu"):
            self.inside = nn.Linear(3, 3)
        self.register_buffer("table", torch.tensor([1.0, 2.0], **named))


def test_a_constructor_that_names_a_device_stays_on_the_host() -> None:
    plain, recorder = record(lambda: OnDevice(None), seed=3)
    named, recorder_of_named = record(lambda: OnDevice("cuda"), seed=3)
    real = build_real(lambda: OnDevice("cuda"), seed=3)
    for (name, tensor), other, built in zip(
        plain.state_dict().items(), named.state_dict().values(), real.state_dict().values(), strict=True
    ):
        assert other.device.type == built.device.type == "cpu", name
        assert torch.equal(recorder.value(tensor), recorder_of_named.value(other)), name
        assert torch.equal(recorder.value(tensor), built), name


def test_a_module_that_was_built_before_is_refused() -> None:
    module = nn.Linear(2, 2)
    with pytest.raises(OnecurveError, match="returns the same module each time"):
        record(lambda: module, 0)
