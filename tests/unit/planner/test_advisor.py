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
from onecurve.planner.advisor import advise, estimate_with_layouts, hint_at_faster_precision
from onecurve.planner.job_costs import costs_of
from onecurve.planner.traced_model import TracedModel
from onecurve.predict.estimator import Estimator
from onecurve.search.branch_and_bound import BranchAndBound, Candidate, SearchResult
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
    assert len(advice.runners_up) <= 6
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
        costs, refused_axes={"tensor": "operation aten.foo"}, single_round=True, needs_full_parameters=True
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


def estimate(step: float) -> Estimate:
    return Estimate(
        plan=Plan.parse("mb8"),
        seconds={"forward": step},
        memory={},
        available_bytes=1.0,
        utilization=0.5,
        steps=10,
        error=0.1,
    )


def test_a_faster_precision_is_mentioned_from_the_given_factor_on() -> None:
    faster = Candidate(Plan.parse("mb8 bf16"), step=1.0, memory_bytes=0.0, available_bytes=1.0, devices_paid=1)
    (hint,) = hint_at_faster_precision(faster, estimate(1.3), factor=1.2)
    assert "a step would take 1.0 s under mb8 bf16" in hint
    assert hint_at_faster_precision(faster, estimate(1.1), factor=1.2) == []
    assert hint_at_faster_precision(None, estimate(1.3), factor=1.2) == []
    (hint,) = hint_at_faster_precision(faster, None, factor=1.2)
    assert "it would fit, and a step would take" in hint
