"""The tensors that cross a stage boundary are derived from the model's data flow, not from names of modules."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from onecurve.describe.dataflow import BlockOutput, Dataflow
from onecurve.describe.errors import OnecurveError
from onecurve.measure.blocks import find_blocks
from onecurve.measure.dataflow import trace_dataflow

sys.path.insert(0, str(Path(__file__).parents[2] / "jobs"))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x)


class SkipConnection(nn.Module):
    """The first block's output skips the others; the head uses the embedding's weight without calling it."""

    def __init__(self, detached: bool = False) -> None:
        super().__init__()
        self.table, self.norm, self.unused = nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(2, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.detached = detached

    def forward(self, words: Tensor) -> Tensor:
        x = first = self.blocks[0](self.table(words))
        for block in self.blocks[1:]:
            x = block(x)
        skipped = first.detach() if self.detached else first
        return F.linear(self.norm(x + skipped), self.table.weight)


def dataflow_of(build: Callable[[], nn.Module], *inputs: Tensor) -> Dataflow:
    mode = FakeTensorMode()
    with mode:
        model = build()
    fake_batch = [mode.from_tensor(tensor) for tensor in inputs]
    return trace_dataflow(model, find_blocks(model), mode, lambda: model(*fake_batch))


@pytest.mark.parametrize("detached", [False, True])  # a tensor may cross without a gradient
def test_a_skip_connection_crosses_every_boundary(detached: bool) -> None:
    dataflow = dataflow_of(lambda: SkipConnection(detached), torch.zeros(2, 3, dtype=torch.int64))
    assert dataflow.tensors_crossing(1) == (BlockOutput(0, 0),)
    assert dataflow.tensors_crossing(2) == (BlockOutput(0, 0), BlockOutput(1, 0))
    assert dataflow.tensors_crossing(4) == (BlockOutput(0, 0), BlockOutput(3, 0))


def test_units_are_needed_by_their_consumers_and_unused_ones_by_the_last_stage() -> None:
    dataflow = dataflow_of(SkipConnection, torch.zeros(2, 3, dtype=torch.int64))
    assert set(dataflow.units) == {"table", "norm", "unused"}
    assert dataflow.units_needed(0, 2) == {"table"}
    assert dataflow.units_needed(2, 3) == set()
    assert dataflow.units_needed(3, 4) == {"table", "norm", "unused"}


def test_the_output_of_the_first_tower_crosses_the_second() -> None:
    import towers

    words = torch.zeros(2, 3, dtype=torch.int64)
    dataflow = dataflow_of(lambda: towers.Towers(8, 2), words, words)
    assert dataflow.blocks == ("query.0", "query.1", "item.0", "item.1")
    assert dataflow.sources[2] == ()
    assert dataflow.units_needed(2, 3) == {"words"}
    assert dataflow.tensors_crossing(3) == (BlockOutput(1, 0), BlockOutput(2, 0))


def test_a_block_that_is_called_twice_is_an_error() -> None:
    class Twice(SkipConnection):
        def forward(self, words: Tensor) -> Tensor:
            return self.blocks[0](super().forward(words)[..., :4])

    with pytest.raises(OnecurveError, match=r"calls block 'blocks.0' 2 times"):
        dataflow_of(Twice, torch.zeros(2, 3, dtype=torch.int64))


def test_a_parameter_of_a_block_that_is_used_outside_of_it_is_an_error() -> None:
    class Regularized(SkipConnection):
        def forward(self, words: Tensor) -> Tensor:
            return super().forward(words) + self.blocks[1].linear.weight.norm()

    with pytest.raises(OnecurveError, match=r"uses 'blocks.1.linear.weight' outside of block 'blocks.1'"):
        dataflow_of(Regularized, torch.zeros(2, 3, dtype=torch.int64))


class ReturnsCondition(nn.Module):
    """A block that returns its second input unchanged; with `inplace` it modifies its first input."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.linear, self.inplace = nn.Linear(4, 4), inplace

    def forward(self, x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return (x.mul_(2) if self.inplace else x + self.linear(c)), c


@pytest.mark.parametrize("inplace", [False, True])
def test_an_input_that_a_block_returns_unchanged_keeps_its_origin(inplace: bool) -> None:
    class Conditioned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.condition = nn.Linear(4, 4)
            self.blocks = nn.ModuleList(ReturnsCondition(inplace) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            c = self.condition(x)
            for block in self.blocks:
                x, _ = block(x, c)
            return x

    dataflow = dataflow_of(Conditioned, torch.zeros(2, 4))
    assert all("condition" in used for used in dataflow.used[:3])
    assert BlockOutput(1, 0) in dataflow.sources[2]
    assert inplace or BlockOutput(0, 0) not in dataflow.sources[2]


def test_a_unit_whose_parameter_is_used_without_a_call_is_recorded() -> None:
    assert dataflow_of(SkipConnection, torch.zeros(2, 3, dtype=torch.int64)).units_used_without_call == {"table"}
