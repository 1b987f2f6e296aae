"""A deferred model is traced on a copy, so that tracing cannot change what is materialized later."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.model.deferred import DeferredModel, TraceableModule, defer_init
from onecurve.model.materialize import Materializer
from onecurve.model.recorder import build_real


class Varied(nn.Module):
    """Has tensors in every place where modules keep tensors, and changes some of them in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.table.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.scale = nn.Parameter(torch.randn(4, dtype=torch.bfloat16))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.frequencies = torch.rand(4)
        self.cache: list[Any] = [torch.rand(4), {"nested": self.frequencies}]
        self.transposed = torch.rand(3, 2).t()

    def forward(self, words: Tensor) -> Tensor:
        self.calls += 1
        self.scratch = torch.zeros(words.shape[0])
        self.frequencies = self.frequencies * 2
        self.cache.append(words)
        x = self.frozen(self.table(words)) * self.scale * self.cache[0]
        return self.head(x)


WORDS = MicroBatch(torch.zeros(3, 5, dtype=torch.int64), None, 3)


def materialized(deferred: DeferredModel) -> Varied:
    Materializer(deferred.recorder, torch.device("cpu")).materialize(deferred.module)
    assert isinstance(deferred.module, Varied)
    return deferred.module


def copy_of(deferred: DeferredModel) -> TraceableModule:
    traceable = deferred.trace_copy()
    assert traceable.module is not deferred.module
    return traceable


def test_the_copy_has_the_same_tensors_on_fake_memory() -> None:
    deferred = defer_init(Varied, seed=1)
    copy = copy_of(deferred).module
    originals = {**dict(deferred.module.named_parameters()), **dict(deferred.module.named_buffers())}
    copies = {**dict(copy.named_parameters()), **dict(copy.named_buffers())}
    assert copies.keys() == originals.keys()
    for name, original in originals.items():
        tensor = copies[name]
        assert isinstance(tensor, FakeTensor), name
        assert tensor is not original, name
        assert (tensor.shape, tensor.stride()) == (original.shape, original.stride()), name
        assert (tensor.dtype, tensor.requires_grad) == (original.dtype, original.requires_grad), name
        assert isinstance(tensor, nn.Parameter) == isinstance(original, nn.Parameter), name
    assert copy.state_dict().keys() == deferred.module.state_dict().keys()  # a buffer stays non-persistent


def test_tied_parameters_stay_tied_in_the_copy() -> None:
    copy = copy_of(defer_init(Varied, seed=1)).module
    assert copy.head.weight is copy.table.weight


def test_tensors_in_plain_attributes_and_lists_are_copied() -> None:
    deferred = defer_init(Varied, seed=1)
    copy = copy_of(deferred).module
    assert copy.cache[0] is not deferred.module.cache[0]
    assert copy.cache[1]["nested"] is copy.frequencies
    assert copy.frequencies is not deferred.module.frequencies
    assert (copy.transposed.shape, copy.transposed.stride()) == ((2, 3), (1, 2))
    assert all(isinstance(tensor, FakeTensor) for tensor in (copy.frequencies, copy.cache[0], copy.transposed))


def test_running_the_copy_does_not_change_the_original() -> None:
    deferred = defer_init(Varied, seed=1)
    traceable = copy_of(deferred)
    output = traceable.forward(WORDS)
    assert isinstance(output, FakeTensor)
    assert output.shape == (3, 5, 6)
    assert len(traceable.module.cache) == 2  # and neither is the copy, except for its tensors
    model, real = materialized(deferred), build_real(Varied, 1)
    expected = {**real.state_dict(), "frequencies": real.frequencies, "scratch": real.scratch, "cache": real.cache[0]}
    actual = {**model.state_dict(), "frequencies": model.frequencies, "scratch": model.scratch, "cache": model.cache[0]}
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(actual[name], tensor), name
    assert len(model.cache) == 2
    model(WORDS.inputs)  # no fake tensor is left in it


def test_a_copy_can_be_made_again_after_the_first_was_run() -> None:
    deferred = defer_init(Varied, seed=1)
    copy_of(deferred).forward(WORDS)
    assert len(copy_of(deferred).module.cache) == 2


def test_a_module_that_cannot_be_copied_is_recorded_again() -> None:
    constructed = []

    class Uncopyable(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 2)
            self.lock = threading.Lock()
            constructed.append(self)

    deferred = defer_init(Uncopyable, seed=1)
    traceable = copy_of(deferred)
    assert len(constructed) == 2
    assert traceable.module is constructed[1]
    output = traceable.forward(MicroBatch(torch.zeros(3, 4), None, 3))
    assert isinstance(output, FakeTensor)
    Materializer(deferred.recorder, torch.device("cpu")).materialize(deferred.module)
    assert torch.equal(deferred.module.weight, build_real(Uncopyable, 1).weight)


def test_a_forward_that_reads_values_can_be_traced() -> None:
    class Selects(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            positive = x[x.sum(1) > 0]
            return super().forward(positive) if x.sum().item() >= 0 else x

    traceable = copy_of(defer_init(lambda: Selects(4, 2), seed=1))
    output = traceable.forward(MicroBatch(torch.zeros(3, 4), None, 3))
    assert isinstance(output, FakeTensor)
    assert output.shape == (3, 2)  # as if every row were selected


def test_every_tensor_of_a_micro_batch_becomes_fake() -> None:
    traceable = copy_of(defer_init(lambda: nn.Linear(4, 2), seed=1))
    micro = MicroBatch({"x": torch.zeros(3, 4), "scale": 2}, (torch.ones(3), None), 3)
    fake = traceable.fake_batch(micro)
    assert isinstance(fake.inputs["x"], FakeTensor)
    assert isinstance(fake.target[0], FakeTensor)
    assert (fake.inputs["scale"], fake.target[1], fake.samples) == (2, None, 3)
    assert not isinstance(micro.inputs["x"], FakeTensor)


def test_a_model_that_is_already_real_cannot_be_traced() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = torch.randn(20)
            self.positive = nn.Parameter(weight[weight > 0])  # its shape depends on values

    deferred = defer_init(Counts, seed=1)
    with pytest.raises(OnecurveError, match=r"could not be recorded .*needs a constructor that can be recorded"):
        deferred.trace_copy()


def test_sizes_count_tied_parameters_once() -> None:
    deferred = defer_init(Varied, seed=1)
    assert deferred.parameters == 6 * 4 + 4 * 4 + 4 + 4
    assert deferred.parameter_bytes == 4 * (6 * 4 + 4 * 4 + 4) + 2 * 4
    assert deferred.trainable_bytes == 4 * 6 * 4 + 2 * 4


def test_a_model_that_is_no_module_is_refused() -> None:
    with pytest.raises(OnecurveError, match=r"returned list; it must return a torch\.nn\.Module"):
        defer_init(lambda: [nn.Linear(2, 2)], seed=0)
