"""A model in stages, one after the other in one process: the same numbers, and what is refused."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.apply.partial_forward import PartialForward, Span
from onecurve.apply.shape_inference import ShapeInference
from onecurve.data.training_data import open_data
from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.model.deferred import defer_init
from onecurve.model.materialize import Materializer
from onecurve.model.recorder import build_real
from onecurve.planner.pipeline_stages import dataflow_of
from onecurve.planner.traced_model import TracedModel

CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Skipping(nn.Module):
    """The first block's output is used again at the end; the last product is with a parameter of the first module."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.scale = nn.Parameter(torch.ones(4))
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        x = early = self.blocks[0](self.first(x))
        for block in self.blocks[1:]:
            if self.inplace:
                x += self.scale
            x = block(x * self.scale)
        return (x + early) @ self.first.weight


class Points:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(4), torch.randn(4)


def staged(build: Callable[[], nn.Module], cuts: list[int]) -> tuple[list[Tensor], nn.Module, MicroBatch]:
    """What each stage gives, and the whole model."""
    job = oc.Job(
        model=build,
        loss=lambda output, target: (output - target).mean(1),
        data=Points,
        optimizer=oc.SGD(),
        global_batch=4,
        steps=1,
    )
    data = open_data(job)
    dataflow, micro = dataflow_of(TracedModel(job, data)), data.micro(0, 4)
    given: list[Tensor] = []
    for begin, end in itertools.pairwise([0, *cuts, len(dataflow.blocks)]):
        deferred = defer_init(build, job.seed)
        shapes = ShapeInference(
            defer_init(build, job.seed), [*dataflow.blocks, *dataflow.units], CPU, torch.float32, torch.no_grad
        )
        model = PartialForward(deferred.module, dataflow, [Span(begin, end)], shapes, CPU)
        Materializer(deferred.recorder, CPU).materialize(deferred.module)
        model.listen()
        given = model.run(Span(begin, end), micro, given, torch.manual_seed)
    return given, build_real(build, job.seed), micro


class Shuffling(Skipping):
    """Draws outside the blocks, and drops inside them."""

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(4)
        for block in self.blocks:
            x = nn.functional.dropout(block(x * noise), 0.5)
        return x / noise


def test_what_is_drawn_outside_the_blocks_is_the_same_on_every_stage() -> None:
    output, _, _ = staged(Shuffling, [])
    for cuts in ([1], [1, 2, 3]):
        assert torch.equal(staged(Shuffling, cuts)[0], output)


@pytest.mark.parametrize("cuts", [[1], [2], [1, 2, 3]])
def test_stages_give_what_the_whole_gives(cuts: list[int]) -> None:
    output, whole, micro = staged(Skipping, cuts)
    assert torch.equal(output, micro.forward(whole))


def test_writing_into_what_a_block_returned_is_refused() -> None:
    with pytest.raises(OnecurveError, match=r"writes into what the block 'blocks.0' returned"):
        staged(lambda: Skipping(inplace=True), [2])
