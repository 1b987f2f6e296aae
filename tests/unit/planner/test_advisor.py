"""Advice from the result of a search: runners-up with reasons, a frontier, and hints."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup
from onecurve.describe.costs import JobCosts
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.estimate.estimator import Estimator
from onecurve.planner.advisor import advise, estimate_with_layouts, faster_in_bf16
from onecurve.planner.job_costs import costs_of
from onecurve.planner.traced_model import TracedModel
from onecurve.search.branch_and_bound import BranchAndBound, Candidate, SearchResult, family
from onecurve.search.space import Space


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


def search(estimator: Estimator) -> SearchResult:
    return BranchAndBound(Space(estimator)).run()


def hosts(count: int, memory: float = 1e9) -> Cluster:
    device = DeviceSpec(name="core", memory=int(memory), memory_bandwidth=1e11, flops={"fp32": 1e9}, op_seconds=1e-7)
    return Cluster((HostGroup(device, count=count, rank_overhead_bytes=0.0, price_per_hour=1.0),))


@pytest.fixture(scope="module")
def costs() -> JobCosts:
    """The costs of four identical layers, with tensor parallelism of degree 2."""
    data = [(torch.zeros(32), torch.zeros(32))] * 64
    job = oc.Job(
        model=lambda: nn.Sequential(*(Layer() for _ in range(4))),
        loss=oc.loss.mse,
        data=lambda: data,
        optimizer=oc.AdamW(lr=0.1),
        global_batch=16,
        steps=10,
    )
    return replace(costs_of(TracedModel(job, open_data(job)), ["fp32"], 2), read_seconds_per_sample=0.0)


def test_each_runner_up_uses_another_set_of_axes(costs: JobCosts) -> None:
    estimator = Estimator(hosts(4), costs)
    advice = advise("train.py", estimator, search(estimator), search)
    assert advice.best is not None
    families = [
        frozenset(axis for axis, degree in estimate.plan.mesh.degrees.items() if degree > 1)
        for estimate in (advice.best, *(runner_up.estimate for runner_up in advice.runners_up))
    ]
    assert len(set(families)) == len(families) >= 4
    steps = [runner_up.estimate.step for runner_up in advice.runners_up if runner_up.estimate.fits]
    assert steps == sorted(steps)


def test_the_frontier_is_slower_but_cheaper_or_smaller(costs: JobCosts) -> None:
    estimator = Estimator(hosts(4), costs)
    advice = advise("train.py", estimator, search(estimator), search)
    assert advice.best is not None
    assert advice.frontier
    for estimate in advice.frontier:
        assert estimate.step >= advice.best.step
        smaller = estimate.memory_bytes < advice.best.memory_bytes
        cheaper = estimate.step * estimate.devices < advice.best.step * advice.best.devices
        assert smaller or cheaper


def test_a_plan_with_a_tensor_axis_gets_its_layouts(costs: JobCosts) -> None:
    estimator = Estimator(hosts(2), costs)
    assert costs.layouts
    assert estimate_with_layouts(estimator, Plan.parse("tensor2 mb16")).plan.layouts == costs.layouts
    assert estimate_with_layouts(estimator, Plan.parse("replicate2 mb8")).plan.layouts == {}


def test_excluded_plans_are_explained(costs: JobCosts) -> None:
    limited = replace(
        costs, refused_axes={"tensor": "operation aten.foo"}, has_batch_norm=True, needs_full_parameters=True
    )
    estimator = Estimator(hosts(2), limited)
    hints = advise("train.py", estimator, search(estimator), search).hints
    assert hints[0] == "not split along 'tensor': operation aten.foo"
    assert "batch norm" in hints[1]
    assert "full parameters" in hints[2]
    estimator = Estimator(hosts(2), costs)
    assert advise("train.py", estimator, search(estimator), search).hints == ()


def test_if_nothing_fits_the_smallest_larger_cluster_is_named(costs: JobCosts) -> None:
    estimator = Estimator(hosts(1, memory=2e5), costs)
    result = search(estimator)
    assert result.best is None
    sizes = []

    def recorded_search(larger: Estimator) -> SearchResult:
        sizes.append(larger.cluster.devices)
        return search(larger)

    advice = advise("train.py", estimator, result, recorded_search)
    assert advice.best is None
    assert "it needs at least" in advice.hints[0]
    assert "more than there is" in advice.hints[0]
    assert sizes == [1, 2, 4, 8, 16][: len(sizes)]
    assert f"it would fit on {sizes[-1]} devices of this kind" in advice.hints[1]
    assert "it would fit on devices with at least" in advice.hints[2]


def test_every_family_appears_with_its_reason(costs: JobCosts) -> None:
    device = DeviceSpec("d", "cuda", int(1e9), 1e11, {"fp32": 1e9})
    estimator = Estimator(Cluster((HostGroup(device, count=2, devices_per_host=4, rank_overhead_bytes=0.0),)), costs)
    result = search(estimator)
    advice = advise("train.py", estimator, result, search)
    assert advice.best is not None
    shown = {family(plan) for plan in (advice.best.plan, *(each.estimate.plan for each in advice.runners_up))}
    assert shown == set(result.families)
    assert len(shown) > 7
    assert frozenset({"shard"}) in shown
    assert all(runner_up.reason for runner_up in advice.runners_up)


def candidate(text: str, step: float, memory_bytes: float = 1.0) -> Candidate:
    return Candidate(Plan.parse(text), step, memory_bytes, available_bytes=2e9, devices_paid=2)


def test_the_advice_says_why_a_simpler_plan_was_chosen(costs: JobCosts) -> None:
    estimator = Estimator(hosts(2), costs)
    best, chosen = candidate("shard2 mb8 zero2", 1.0), candidate("shard2 mb8", 1.04)
    result = SearchResult(best=best, chosen=chosen, families={family(best.plan): best}, frontier=[best])
    advice = advise("train.py", estimator, result, search)
    assert advice.best is not None
    assert str(advice.best.plan) == "shard2 mb8 fp32"
    assert advice.choice.startswith("shard2 mb8 fp32 zero2 is predicted 3.8% faster, but has more options (zero2); ")
    assert "less than 5%, so the simpler one was chosen" in advice.choice
    assert [str(each.estimate.plan) for each in advice.runners_up] == ["shard2 mb8 fp32 zero2"]
    assert advise("train.py", estimator, replace(result, chosen=best), search).choice == ""
    as_fast = replace(result, chosen=candidate("shard2 mb8", 1.004))
    assert advise("train.py", estimator, as_fast, search).choice == ""


def test_the_frontier_has_only_what_is_slower_than_the_chosen_plan(costs: JobCosts) -> None:
    estimator = Estimator(hosts(2), costs)
    best, chosen = candidate("shard2 mb8 zero2", 1.0, 9.0), candidate("shard2 mb8", 1.04, 5.0)
    worse, smaller = candidate("shard2 mb4×2", 1.1, 6.0), candidate("shard2 mb2×4", 1.2, 4.0)
    result = SearchResult(best, chosen, {family(best.plan): best}, [best, worse, smaller])
    advice = advise("train.py", estimator, result, search)
    assert [str(estimate.plan) for estimate in advice.frontier] == ["shard2 mb2×4 fp32"]


def estimate(step: float) -> Estimate:
    return Estimate(
        plan=Plan.parse("mb16"),
        seconds={"forward": step},
        memory={},
        available_bytes=1.0,
        utilization=0.5,
        steps=10,
        error=0.1,
    )


def in_bf16(costs: JobCosts, memory: float = 1e9) -> Estimator:
    return Estimator(hosts(1, memory), replace(costs, traces={"bf16": costs.traces["fp32"]}))


def test_bf16_is_mentioned_from_the_given_factor_on(costs: JobCosts) -> None:
    estimator = in_bf16(costs)
    step = estimator.estimate(Plan.parse("mb16 bf16")).step
    hint = faster_in_bf16(estimator, estimate(1.3 * step), 1.2, search)
    assert hint.startswith("the same plan would be 1.3 times as fast, ")
    assert "--precision fp32,bf16" in hint
    assert faster_in_bf16(estimator, estimate(1.1 * step), 1.2, search) == ""
    assert faster_in_bf16(in_bf16(costs, memory=1e3), estimate(1.3 * step), 1.2, search) == ""


def test_bf16_is_mentioned_if_only_it_fits(costs: JobCosts) -> None:
    assert faster_in_bf16(in_bf16(costs), None, 1.2, search).startswith("it would fit in bf16, with ")
    assert faster_in_bf16(in_bf16(costs, memory=1e3), None, 1.2, search) == ""
