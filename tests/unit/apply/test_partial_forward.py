"""Pipeline stages run one after the other in one process compute the same numbers as the full model."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import onecurve as oc
from onecurve.apply.absent_module import AbsentModule
from onecurve.apply.partial_forward import PartialForward, StageSpan
from onecurve.apply.shape_inference import ShapeInference
from onecurve.data.training_data import open_data
from onecurve.job.batch import MicroBatch
from onecurve.model.deferred import defer_init
from onecurve.model.materialize import Materializer
from onecurve.model.recorder import build_real
from onecurve.planner.traced_model import TracedModel

CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Skipping(nn.Module):
    """Uses the first block's output again at the end, and there multiplies by a parameter of the first module."""

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


def run_stages(
    build: Callable[[], nn.Module], boundaries: list[int], ranks: int | None = None
) -> tuple[Tensor, nn.Module, MicroBatch]:
    """Return the last stage's output, the full model, and the micro-batch that was used."""
    output, _, micro = run_stages_of_ranks(build, boundaries, ranks or len(boundaries) + 1)
    return output, build_real(build, 0), micro


def run_stages_of_ranks(
    build: Callable[[], nn.Module], boundaries: list[int], ranks: int
) -> tuple[Tensor, list[nn.Module], MicroBatch]:
    """Run the stages, assigned to `ranks` round robin; return the output, each rank's model, and the micro-batch."""
    job = oc.Job(
        model=build,
        loss=lambda output, target: (output - target).mean(1),
        data=Points,
        optimizer=oc.SGD(),
        global_batch=4,
        steps=1,
    )
    data = open_data(job)
    dataflow, micro = TracedModel(job, data).dataflow_for(len(boundaries) + 1), data.micro(0, 4)
    spans = [StageSpan(begin, end) for begin, end in itertools.pairwise([0, *boundaries, len(dataflow.blocks)])]
    models, forwards = [], []
    for rank in range(ranks):
        deferred = defer_init(build, job.seed)
        names = [*dataflow.blocks, *dataflow.units]
        shapes = ShapeInference(deferred.trace_copy(), names, CPU, torch.float32, torch.no_grad)
        forwards.append(PartialForward(deferred.module, dataflow, spans[rank::ranks], shapes, CPU))
        Materializer(deferred.recorder, CPU).materialize(deferred.module)
        forwards[-1].register_output_hooks()
        models.append(deferred.module)
    passed: Any = []
    for number, span in enumerate(spans):
        passed = forwards[number % ranks].run(span, micro, passed, torch.manual_seed)
    return passed, models, micro


class Shuffling(Skipping):
    """Draws random numbers outside the blocks, in dropout as well."""

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(4)
        for block in self.blocks:
            x = nn.functional.dropout(block(x * noise), 0.5)
        return x / noise


def test_random_numbers_drawn_outside_the_blocks_are_the_same_on_every_stage() -> None:
    output, _, _ = run_stages(Shuffling, [])
    for boundaries in ([1], [1, 2, 3]):
        assert torch.equal(run_stages(Shuffling, boundaries)[0], output)


@pytest.mark.parametrize("boundaries", [[1], [2], [1, 2, 3]])
def test_stages_compute_the_same_output_as_the_full_model(boundaries: list[int]) -> None:
    output, model, micro = run_stages(Skipping, boundaries)
    assert torch.equal(output, micro.forward(model))


@pytest.mark.parametrize("boundaries", [[1], [2], [1, 2, 3]])
def test_a_block_output_may_be_changed_in_place(boundaries: list[int]) -> None:
    output, model, micro = run_stages(lambda: Skipping(inplace=True), boundaries)
    assert torch.equal(output, micro.forward(model))


class Collecting(Skipping):
    """Collects the outputs of its blocks with forward hooks, and computes with them at the end."""

    def __init__(self, lazy: bool) -> None:
        super().__init__()
        self.lazy = lazy
        self.collected: list[Tensor] = []
        if not lazy:
            self.register()

    def register(self) -> None:
        for module in self.modules():
            if isinstance(module, Block):  # by class, as Hugging Face models do
                module.register_forward_hook(self.collect)

    def collect(self, _: nn.Module, __: Any, output: Tensor) -> None:
        self.collected.append(output.sin())

    def forward(self, x: Tensor) -> Tensor:
        if self.lazy:
            self.register()
            self.lazy = False
        self.collected.clear()
        for block in self.blocks:
            x = block(x * self.scale)
        return x + torch.stack(self.collected).mean(0)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("boundaries", "ranks"), [([1], 2), ([1, 2, 3], 4), ([1, 2, 3], 2)])
def test_hooks_of_the_model_collect_outputs_of_all_stages(boundaries: list[int], ranks: int, lazy: bool) -> None:
    output, model, micro = run_stages(lambda: Collecting(lazy), boundaries, ranks)
    assert torch.equal(output, micro.forward(model))


class Doubling(Skipping):
    """Has a hook that replaces the output of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[0].register_forward_hook(lambda *call: 2 * call[-1])


def test_a_hook_that_replaces_an_output_does_so_once() -> None:
    output, model, micro = run_stages(Doubling, [1, 2])
    assert torch.equal(output, micro.forward(model))


class DropoutBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.5))


class Checkpointed(Skipping):
    """Calls torch.utils.checkpoint itself for every `segment` blocks; 0: it does not."""

    def __init__(self, segment: int, reentrant: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(DropoutBlock() for _ in range(4))
        self.segment, self.reentrant = segment, reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for number in range(0, 4, self.segment or 1):
            run = nn.Sequential(*self.blocks[number : number + self.segment]) if self.segment else self.blocks[number]
            x = checkpoint(run, x, use_reentrant=self.reentrant) if self.segment else run(x)
        return x * self.scale


@pytest.mark.parametrize(
    ("boundaries", "ranks", "segment", "reentrant"),
    [([1], 2, 1, False), ([1], 2, 1, True), ([1], 2, 2, False), ([1, 2, 3], 2, 4, True)],
)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_stage_recomputes_what_the_model_checkpoints(
    boundaries: list[int], ranks: int, segment: int, reentrant: bool
) -> None:
    expected = gradients_of_stages(lambda: Checkpointed(0), boundaries, ranks)
    gradients = gradients_of_stages(lambda: Checkpointed(segment, reentrant), boundaries, ranks)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, msg=name)


def gradients_of_stages(build: Callable[[], nn.Module], boundaries: list[int], ranks: int) -> dict[str, Tensor]:
    """Return the gradients of the squared output, summed over the ranks."""
    output, models, _ = run_stages_of_ranks(build, boundaries, ranks)
    output.square().sum().backward()
    gradients: dict[str, Tensor] = {}
    for model in models:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                gradients[name] = gradients.get(name, 0) + parameter.grad
    return gradients


class ScaledBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        return self.linear(x) * self.embedding(condition)


class Borrowing(nn.Module):
    """Calls a module of its first block at the end too, as diffusion transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ScaledBlock() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for block in self.blocks:
            y = block(y, x)
        return y * self.blocks[0].embedding(x)


@pytest.mark.parametrize("boundaries", [[1], [2]])
def test_a_module_of_a_block_may_be_called_outside_of_it(boundaries: list[int]) -> None:
    output, model, micro = run_stages(Borrowing, boundaries)
    assert torch.equal(output, micro.forward(model))


def test_a_call_that_the_trace_did_not_show_names_the_module() -> None:
    absent = AbsentModule("blocks.0", ScaledBlock(), lambda: None)
    assert isinstance(absent, ScaledBlock)
    assert absent.embedding.weight.shape == (4, 4)
    with pytest.raises(oc.OnecurveError, match=r"calls 'blocks.0.embedding' on a pipeline stage"):
        absent.embedding(torch.zeros(4))
