"""The planner traces a copy of the model on fake tensors: it finds the blocks and changes nothing."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import onecurve as oc
from harness import EXAMPLES
from onecurve.data.training_data import open_data
from onecurve.describe.errors import OnecurveError
from onecurve.job.script import load_job
from onecurve.model.deferred import defer_init
from onecurve.model.materialize import Materializer
from onecurve.model.recorder import build_real
from onecurve.planner.traced_model import TracedModel


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x)


class Model(nn.Module):
    """Calls two of its lists of layers, and leaves a tensor in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(Layer() for _ in range(3))
        self.decoder = nn.ModuleList(Layer() for _ in range(2))
        self.unused = nn.ModuleList(Layer() for _ in range(2))
        self.register_buffer("calls", torch.zeros(()))
        self.last_input: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        self.last_input = x
        for layer in [*self.encoder, *self.decoder]:
            x = layer(x)
        return x.sum(1)


class Selects(nn.Module):
    """Its constructor cannot be recorded, because a shape depends on values."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.randn(20)
        self.positive = nn.Parameter(drawn[drawn > 0])

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1) * self.positive.sum()


class Points:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((4,), float(index)), torch.tensor(1.0)


def make_job(model: type[nn.Module] = Model, global_batch: int = 8) -> oc.Job:
    return oc.Job(
        model=model,
        loss=lambda output, target: (output - target).square(),
        data=Points,
        optimizer=oc.SGD(lr=0.1),
        global_batch=global_batch,
        steps=1,
    )


def trace(job: oc.Job) -> TracedModel:
    return TracedModel(job, open_data(job))


def test_the_blocks_of_a_gpt_are_found() -> None:
    job = load_job(EXAMPLES / "gpt.py", ["width=16", "depth=3", "context=8"])
    traced = trace(job)
    assert traced.blocks == ["blocks.0", "blocks.1", "blocks.2"]
    assert [kind.names for kind in traced.kinds(2)] == [traced.blocks]
    assert traced.block_modules["blocks.1"] is traced.model.blocks[1]


def test_modules_that_the_forward_does_not_call_are_not_blocks() -> None:
    traced = trace(make_job())
    assert traced.blocks == ["encoder.0", "encoder.1", "encoder.2", "decoder.0", "decoder.1"]


def test_tracing_does_not_change_the_deferred_model() -> None:
    job = make_job()
    deferred = defer_init(job.model, seed=4)
    traced = TracedModel(job, open_data(job), deferred)
    assert traced.blocks
    traced.forward()
    traced.loss(traced.micro(4))
    traced.kinds(4)
    assert traced.model.last_input is not None
    Materializer(deferred.recorder, torch.device("cpu")).materialize(deferred.module)
    actual, expected = deferred.module.state_dict(), build_real(Model, 4).state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())
    assert deferred.module.last_input is None
    assert not any(isinstance(tensor, FakeTensor) for tensor in deferred.module.state_dict().values())


def test_a_micro_batch_is_fake_and_not_larger_than_the_global_batch() -> None:
    traced = trace(make_job(global_batch=3))
    micro = traced.micro(8)
    assert isinstance(micro.inputs, FakeTensor)
    assert (micro.samples, micro.inputs.shape) == (3, (3, 4))
    assert traced.micro(8) is micro  # read once
    assert traced.loss(micro).shape == ()


def test_a_constructor_that_cannot_be_recorded_is_refused_with_the_reason() -> None:
    with pytest.raises(OnecurveError, match=r"constructor could not be recorded \(.*aten\.nonzero.* depends on values"):
        trace(make_job(Selects))


def test_an_auxiliary_loss_of_all_layers_cannot_be_split_into_pipeline_stages() -> None:
    job = replace(make_job(), loss=oc.loss.hugging_face_local_auxiliary)
    with pytest.raises(OnecurveError, match="needs the router logits of all layers"):
        trace(job).dataflow_for(2)


class DropsLayers(Model):
    """Reads a random value in forward, as models with layer drop do."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.encoder:
            if torch.rand([]) < 0.1:
                continue
            x = layer(x)
        return x.sum(1)


@pytest.mark.parametrize("samples", [1, 8])
def test_kinds_of_a_model_that_reads_random_values(samples: int) -> None:
    job = make_job(DropsLayers)
    (kind,) = TracedModel(job, open_data(job)).kinds(samples)
    assert kind.names == ["encoder.0", "encoder.1", "encoder.2"]
