import torch
from torch import nn

from onecurve.apply.pipeline_stage import DynamicShapeStage


class Layers(nn.Module):
    recomputes = False

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(3, 3), nn.Embedding(4, 3)


def can_split(outputs_of) -> bool:
    """Whether the backward of a stage with these layers and outputs can be split."""
    stage = object.__new__(DynamicShapeStage)
    stage.submod, stage._backward_splits = Layers(), None
    received = torch.randn(2, 3, requires_grad=True)
    return stage._can_split_backward(outputs_of(stage.submod, received), [received, 0])


def words(layers: Layers) -> torch.Tensor:
    return layers.table(torch.tensor([0, 1]))


def test_a_chain_can_be_split() -> None:
    assert can_split(lambda layers, x: [layers.linear(x)])
    assert can_split(lambda layers, x: [layers.linear(x) + words(layers)])


def test_a_parameter_that_is_used_twice_cannot() -> None:
    assert not can_split(lambda layers, x: [layers.linear(layers.linear(x))])


def test_an_output_that_depends_on_parameters_only_cannot() -> None:
    def send_table_too(layers, x):
        found = words(layers)
        return [layers.linear(x) + found, found]

    assert not can_split(send_table_too)
