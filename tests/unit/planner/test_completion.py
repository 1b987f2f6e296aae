"""A plan that does not say how the model is split is completed from the model's dataflow."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from harness import EXAMPLES
from onecurve.data.training_data import open_data
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.dataflow import BlockOutput
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.job.script import load_job
from onecurve.planner.completion import PlanCompleter

BLOCKS = ("blocks.0", "blocks.1", "blocks.2", "blocks.3")


@pytest.fixture(scope="module")
def completer() -> PlanCompleter:
    """Completes plans of a small GPT with four blocks."""
    job = load_job(EXAMPLES / "gpt.py", ["width=16", "depth=4", "context=8", "batch=8"])
    return PlanCompleter(job, open_data(job))


@pytest.fixture(scope="module")
def tensor_plan(completer: PlanCompleter) -> ResolvedPlan:
    return completer.resolve(Plan.parse("tensor2 mb8"))


@pytest.mark.parametrize("text", ["mb8", "replicate2 mb4", "mb4×2 bf16"])
def test_a_plan_that_splits_nothing_is_left_as_it_is(completer: PlanCompleter, text: str) -> None:
    plan = Plan.parse(text)
    assert completer.resolve(plan) == ResolvedPlan(plan)


@pytest.mark.parametrize("text", ["shard2 mb4", "mb8 recompute=full", "mb8 recompute=selective", "mb8 compile"])
def test_a_plan_that_wraps_blocks_gets_their_names(completer: PlanCompleter, text: str) -> None:
    plan = Plan.parse(text)
    assert completer.resolve(plan) == ResolvedPlan(plan, BLOCKS)


def test_layouts_are_derived_for_the_tensor_axis(tensor_plan: ResolvedPlan) -> None:
    layouts = tensor_plan.plan.layouts
    assert layouts["blocks.*.qkv.weight"] == "dim 0 in 3 parts"  # queries, keys and values
    assert layouts["blocks.*.project.weight"] == "dim 1"
    assert (layouts["blocks.*.mlp.0.weight"], layouts["blocks.*.mlp.2.weight"]) == ("dim 0", "dim 1")
    assert not any("norm" in pattern for pattern in layouts)
    assert tensor_plan.blocks == ()


def test_stages_blocks_and_dataflow_are_derived_for_the_pipeline_axis(completer: PlanCompleter) -> None:
    resolved = completer.resolve(Plan.parse("pipeline2 mb4×2"))
    assert len(resolved.plan.stages) == 2
    assert sum(resolved.plan.stages) == 4
    assert resolved.blocks == BLOCKS
    assert resolved.dataflow is not None
    assert resolved.dataflow.blocks == BLOCKS
    assert resolved.dataflow.tensors_crossing(2) == (BlockOutput(1, 0),)
    assert "bytes" in resolved.dataflow.units_needed(0, 2)  # the embedding
    assert resolved.dataflow.units_needed(2, 4) == {"norm", "head"}


def test_an_interleaved_schedule_has_two_stages_per_rank(completer: PlanCompleter) -> None:
    resolved = completer.resolve(Plan.parse("pipeline2 mb4×2 schedule=interleaved"))
    assert resolved.plan.stages == (1, 1, 1, 1)


def test_a_complete_plan_is_left_as_it_is(completer: PlanCompleter) -> None:
    staged = replace(Plan.parse("pipeline2 mb4×2"), stages=(3, 1))
    assert completer.resolve(staged).plan == staged
    laid_out = replace(Plan.parse("tensor2 mb8"), layouts={"head.weight": "dim 0"})
    assert completer.resolve(laid_out).plan == laid_out


@pytest.mark.parametrize("stages", [(3, 3), (1, 1), (4, 0)])
def test_stages_written_for_another_model_are_refused(completer: PlanCompleter, stages: tuple[int, int]) -> None:
    plan = replace(Plan.parse("pipeline2 mb4×2"), stages=stages)
    with pytest.raises(
        OnecurveError, match=r"stages \[\d, \d\] are for \d blocks, but the model has 4; .*leave stages"
    ):
        completer.resolve(plan)


def test_more_stages_than_blocks_are_cut_between_smaller_modules(completer: PlanCompleter) -> None:
    resolved = completer.resolve(Plan.parse("pipeline8 mb1×8"))
    assert resolved.dataflow is not None
    assert len(resolved.dataflow.blocks) == sum(resolved.plan.stages) > 8
    assert len(completer.resolve(Plan.parse("pipeline4 mb1×8")).dataflow.blocks) == 4


@pytest.mark.parametrize("text", ["mb8", "shard2 mb4", "pipeline2 mb4×2", "tensor2 mb8"])
def test_a_resolved_plan_is_passed_between_ranks_as_json(
    completer: PlanCompleter, tensor_plan: ResolvedPlan, text: str
) -> None:
    resolved = tensor_plan if text.startswith("tensor") else completer.resolve(Plan.parse(text))
    assert from_json(ResolvedPlan, to_json(resolved).encode(), "plan") == resolved


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x)


class Selects(nn.Module):
    """Its constructor cannot be recorded, because a shape depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer())
        drawn = torch.randn(20)
        self.positive = nn.Parameter(drawn[drawn > 0])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).sum(1) * self.positive.sum()


def test_a_model_that_cannot_be_recorded_can_be_sharded_but_not_split() -> None:
    data = [(torch.zeros(3), torch.tensor(0.0))] * 8
    job = oc.Job(
        model=Selects,
        loss=lambda output, target: (output - target).square(),
        data=lambda: data,
        optimizer=oc.SGD(lr=0.1),
        global_batch=8,
        steps=1,
    )
    completer = PlanCompleter(job, open_data(job))
    assert completer.resolve(Plan.parse("shard2 mb4")).blocks == ("layers.0", "layers.1")
    for text in ("pipeline2 mb4×2", "tensor2 mb8"):
        with pytest.raises(OnecurveError, match="constructor could not be recorded"):
            completer.resolve(Plan.parse(text))


class Center(nn.Module):
    """A block that subtracts a running mean of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(0))
        return x + self.linear(x - self.mean)


class Centered(nn.Sequential):
    def __init__(self, *others: nn.Module) -> None:
        super().__init__(*(Center() for _ in range(4)), *others)


class UnrecordedCentered(Centered):
    """Its constructor cannot be recorded, because a shape depends on values."""

    def __init__(self) -> None:
        super().__init__()
        drawn = torch.randn(20)
        self.register_buffer("positive", drawn[drawn > 0])


MEANS = ("0.mean", "1.mean", "2.mean", "3.mean")


def centered_completer(model: object = Centered, **settings: object) -> PlanCompleter:
    job = oc.Job(
        model=model,
        loss=oc.loss.mse,
        data=lambda: [(torch.zeros(4), torch.zeros(4))] * 16,
        optimizer=oc.SGD(lr=0.1),
        global_batch=8,
        steps=1,
        **settings,
    )
    return PlanCompleter(job, open_data(job))


@pytest.mark.parametrize("model", [Centered, UnrecordedCentered])
def test_buffers_that_forward_changes_are_refused_on_several_data_ranks_or_averaged(model: object) -> None:
    completer = centered_completer(model)
    with pytest.raises(OnecurveError, match=r"depending on the samples of a round.*Job\(buffers='average'\)"):
        completer.resolve(Plan.parse("mb4×2"))
    alone = completer.resolve(Plan.parse("mb8"))
    assert alone.changed_buffers.data_dependent == MEANS
    assert alone.averaged_buffers == ()
    names = "buffers '0.mean', '1.mean', '2.mean' and 1 more"
    for plan in ("replicate2 mb4", "shard2 mb4"):
        with pytest.raises(OnecurveError, match=f"{names} depending on the samples.*Job.buffers='average'"):
            completer.resolve(Plan.parse(plan))
    averaged = centered_completer(model, buffers="average").resolve(Plan.parse("replicate2 mb4"))
    assert averaged.averaged_buffers == MEANS


def test_buffers_that_cannot_be_averaged_exactly_are_refused() -> None:
    completer = centered_completer(buffers="average")
    with pytest.raises(OnecurveError, match="cannot be averaged after each round of a pipeline"):
        completer.resolve(Plan.parse("pipeline2·replicate2 mb2×2"))
    assert completer.resolve(Plan.parse("pipeline2 mb4×2")).changed_buffers.names == MEANS
    with_norm = centered_completer(lambda: Centered(nn.BatchNorm1d(4)), buffers="average")
    with pytest.raises(OnecurveError, match="batch_norm='local'"):
        with_norm.resolve(Plan.parse("replicate2 mb4"))
