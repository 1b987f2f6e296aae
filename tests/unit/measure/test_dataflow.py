"""What crosses a cut is found from the model's data flow, whatever its modules are called."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from onecurve.describe.dataflow import Dataflow, Source
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


class Skipping(nn.Module):
    """The first block's output goes past the others; the head is the table, used without calling it."""

    def __init__(self, detached: bool = False) -> None:
        super().__init__()
        self.table, self.norm, self.unused = nn.Embedding(9, 4), nn.LayerNorm(4), nn.Linear(2, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.detached = detached

    def forward(self, words: Tensor) -> Tensor:
        x = first = self.blocks[0](self.table(words))
        for block in self.blocks[1:]:
            x = block(x)
        kept = first.detach() if self.detached else first
        return F.linear(self.norm(x + kept), self.table.weight)


def dataflow_of(build: Callable[[], nn.Module], *inputs: Tensor) -> Dataflow:
    mode = FakeTensorMode()
    with mode:
        model = build()
    fake_batch = [mode.from_tensor(each) for each in inputs]
    return trace_dataflow(model, find_blocks(model), mode, lambda: model(*fake_batch))


@pytest.mark.parametrize("detached", [False, True])  # what crosses need not carry a gradient
def test_what_skips_blocks_crosses_every_cut(detached: bool) -> None:
    dataflow = dataflow_of(lambda: Skipping(detached), torch.zeros(2, 3, dtype=torch.int64))
    assert dataflow.crossing(1) == (Source(0, 0),)
    assert dataflow.crossing(2) == (Source(0, 0), Source(1, 0))
    assert dataflow.crossing(4) == (Source(0, 0), Source(3, 0))


def test_units_are_where_they_are_needed_and_the_unused_somewhere() -> None:
    dataflow = dataflow_of(Skipping, torch.zeros(2, 3, dtype=torch.int64))
    assert set(dataflow.units) == {"table", "norm", "unused"}
    assert dataflow.needed(0, 2) == {"table"}
    assert dataflow.needed(2, 3) == set()
    assert dataflow.needed(3, 4) == {"table", "norm", "unused"}


def test_the_first_tower_goes_past_the_second() -> None:
    import towers

    words = torch.zeros(2, 3, dtype=torch.int64)
    dataflow = dataflow_of(lambda: towers.Towers(8, 2), words, words)
    assert dataflow.blocks == ("query.0", "query.1", "item.0", "item.1")
    assert dataflow.sources[2] == ()
    assert dataflow.needed(2, 3) == {"words"}
    assert dataflow.crossing(3) == (Source(1, 0), Source(2, 0))


def test_a_block_that_is_called_twice_is_refused() -> None:
    class Twice(Skipping):
        def forward(self, words: Tensor) -> Tensor:
            return self.blocks[0](super().forward(words)[..., :4])

    with pytest.raises(OnecurveError, match=r"calls the block 'blocks.0' 2 times"):
        dataflow_of(Twice, torch.zeros(2, 3, dtype=torch.int64))


class HandingOn(nn.Module):
    """A block that also returns what it was given beside the stream, and one that writes into its stream."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.linear, self.inplace = nn.Linear(4, 4), inplace

    def forward(self, x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return (x.mul_(2) if self.inplace else x + self.linear(c)), c


@pytest.mark.parametrize("inplace", [False, True])
def test_what_a_block_hands_on_is_still_what_it_was(inplace: bool) -> None:
    class Conditioned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.condition = nn.Linear(4, 4)
            self.blocks = nn.ModuleList(HandingOn(inplace) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            c = self.condition(x)
            for block in self.blocks:
                x, _ = block(x, c)
            return x

    dataflow = dataflow_of(Conditioned, torch.zeros(2, 4))
    assert all("condition" in used for used in dataflow.used[:3])
    assert Source(1, 0) in dataflow.sources[2]
    assert inplace or Source(0, 0) not in dataflow.sources[2]


def test_a_parameter_that_is_used_without_its_module_is_known() -> None:
    assert dataflow_of(Skipping, torch.zeros(2, 3, dtype=torch.int64)).opened == {"table"}
