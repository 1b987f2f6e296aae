"""A shallow model computes what the same model with fewer blocks computes, and the other blocks are not allocated."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.model.deferred import defer_init
from onecurve.model.recorder import build_real
from onecurve.planner.shallow_model import ShallowModel, surplus_blocks
from onecurve.planner.traced_model import TracedModel


class Layer(nn.Module):
    def __init__(self, scale: float, returns_tuple: bool) -> None:
        super().__init__()
        self.scale, self.returns_tuple = scale, returns_tuple
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor | tuple[Tensor, None]:
        x = x + self.scale * self.linear(x if mask is None else x * mask)
        return (x, None) if self.returns_tuple else x


class Model(nn.Module):
    """Two kinds of layers, whose settings the model reads: 1, 2, 1, 2, …"""

    def __init__(self, depth: int = 8, returns_tuple: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.layers = nn.ModuleList(Layer(1.0 + number % 2, returns_tuple) for number in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, mask=torch.ones(4) if layer.scale > 1 else None)
            x = x[0] if layer.returns_tuple else x
        return x.sum(-1, keepdim=True)


def surplus(model: Callable[[], nn.Module], count: int) -> list[str]:
    job = oc.Job(
        model=model,
        loss=oc.loss.mse,
        data=lambda: [(torch.zeros(3), torch.zeros(1))] * 4,
        optimizer=oc.SGD(lr=0.1),
        global_batch=2,
        steps=1,
    )
    return surplus_blocks(TracedModel(job, open_data(job)).kinds(2), count)


@pytest.mark.parametrize(("count", "left"), [(2, ["4", "6", "5", "7"]), (3, ["6", "7"]), (4, [])])
def test_of_each_kind_the_first_blocks_stay(count: int, left: list[str]) -> None:
    assert surplus(Model, count) == [f"layers.{number}" for number in left]


def test_blocks_that_do_not_return_a_tensor_like_their_input_stay() -> None:
    assert surplus(lambda: Model(returns_tuple=True), 2) == []


def test_a_shallow_model_equals_a_model_that_never_had_the_other_blocks() -> None:
    shallow = build_real(ShallowModel(Model, surplus(Model, 2)), 0)
    short = build_real(lambda: Model(depth=4), 0)
    assert [*dict(shallow.named_parameters())] == [*dict(short.named_parameters())]
    x = torch.randn(2, 3)
    torch.testing.assert_close(shallow(x), short(x), rtol=0, atol=0)


def test_the_recorded_shallow_model_has_no_parameters_of_the_other_blocks() -> None:
    deferred = defer_init(ShallowModel(Model, surplus(Model, 2)), 0)
    assert deferred.recorder is not None
    assert deferred.parameters == defer_init(lambda: Model(depth=4), 0).parameters
