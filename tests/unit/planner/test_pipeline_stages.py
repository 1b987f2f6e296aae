"""Blocks are assigned to stages by their cost, and stages that do not fit the model are refused."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.planner.job_profile import profile_of
from onecurve.planner.pipeline_stages import assign_blocks, block_chain_of, refuse_mismatched_stages
from onecurve.planner.traced_model import TracedModel

WIDTH = 8


class Layer(nn.Module):
    def __init__(self, factor: int = 1) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, factor * WIDTH), nn.Linear(factor * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """A chain of layers between an embedding and a head; `factors` are the sizes of the layers."""

    def __init__(self, factors: list[int], words: int = 10) -> None:
        super().__init__()
        self.table = nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList(Layer(factor) for factor in factors)
        self.head = nn.Linear(WIDTH, words)

    def forward(self, words: Tensor) -> Tensor:
        x = self.table(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).sum((1, 2))


def loss_in_numpy(output: Tensor, _: Tensor) -> Tensor:
    """Cannot be traced: fake tensors have no values."""
    return torch.from_numpy(output.detach().numpy())


def traced(factors: list[int], words: int = 10, loss: object = oc.loss.mse) -> TracedModel:
    data = [(torch.zeros(4, dtype=torch.int64), torch.tensor(0.0))] * 8
    job = oc.Job(
        model=lambda: Model(factors, words),
        loss=loss,  # type: ignore[arg-type]
        data=lambda: data,
        optimizer=oc.SGD(lr=0.1),
        global_batch=8,
        steps=1,
    )
    return TracedModel(job, open_data(job))


def stages(model: TracedModel, pipeline: int) -> tuple[int, ...]:
    return assign_blocks(Plan.parse(f"pipeline{pipeline} mb1×8"), model, model.dataflow)


def test_equal_blocks_are_divided_evenly() -> None:
    assert stages(traced([1] * 6, words=1), 2) == (3, 3)
    assert stages(traced([1] * 6, words=1), 3) == (2, 2, 2)


def test_a_stage_with_an_expensive_block_gets_fewer_blocks() -> None:
    assert stages(traced([8, 1, 1, 1], words=1), 2) == (1, 3)
    assert stages(traced([1, 1, 1, 8], words=1), 2) == (3, 1)


def test_a_large_head_counts_as_work_of_the_last_stage() -> None:
    assert stages(traced([1] * 4, words=64), 2) == (3, 1)


def test_the_chain_has_costs_per_block_and_the_parameters_of_embedding_and_head() -> None:
    model = traced([1, 2])
    chain = block_chain_of(model, profile_of(model, 2), model.dataflow)
    assert chain.blocks[1][0] == 2 * chain.blocks[0][0]
    assert chain.kinds == (0, 1)
    copies, word = 2, 4  # parameters and gradients, because plain SGD has no state; bytes per element
    assert chain.first == (0.0, copies * word * 10 * WIDTH)
    assert chain.last[0] > 0
    assert chain.last[1] == copies * word * (10 * WIDTH + 10)


def test_a_loss_that_cannot_be_traced_leaves_the_parameters_as_weights() -> None:
    model = traced([8, 1, 1, 1], loss=loss_in_numpy)
    assert stages(model, 2) == (1, 3)
    chain = block_chain_of(model, None, model.dataflow)
    assert chain.blocks[0] == (4.0 * (2 * 8 * WIDTH * WIDTH + 9 * WIDTH), 0.0)
    assert chain.kinds == ()


def test_more_stages_than_blocks_are_refused() -> None:
    with pytest.raises(OnecurveError, match="4 stages, but the model has 3 blocks; use fewer stages"):
        stages(traced([1] * 3), 4)


def test_a_model_without_repeated_blocks_is_cut_between_its_smallest_modules() -> None:
    model = traced([1])
    with pytest.raises(OnecurveError, match="no repeated blocks were found"):
        model.dataflow  # noqa: B018
    dataflow = model.dataflow_for(2)
    assert len(dataflow.blocks) >= 2
    assert all(next(model.model.get_submodule(name).parameters(), None) is not None for name in dataflow.blocks)


@pytest.mark.parametrize(("written", "valid"), [((1, 2), True), ((2, 1), True), ((2, 2), False), ((3, 0), False)])
def test_written_stages_must_cover_every_block(written: tuple[int, ...], valid: bool) -> None:
    plan, dataflow = replace(Plan.parse("pipeline2 mb1×8"), stages=written), traced([1] * 3).dataflow
    if valid:
        refuse_mismatched_stages(plan, dataflow)
    else:
        with pytest.raises(OnecurveError, match=rf"stages \[{written[0]}, {written[1]}\] are for .* the model has 3"):
            refuse_mismatched_stages(plan, dataflow)
