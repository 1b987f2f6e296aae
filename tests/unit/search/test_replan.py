"""Plans for changed conditions: the same samples per step, and a valid plan, whatever the first one was."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.search.replan import with_ranks, with_shares, with_smaller_footprint


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    pipeline = draw(st.sampled_from([1, 1, 2]))
    mesh = Mesh(
        pipeline=pipeline,
        replicate=draw(st.integers(1, 4)),
        shard=draw(st.integers(1, 3)),
        tensor=draw(st.sampled_from([1, 1, 2])),
    )
    shares = draw(st.lists(st.integers(1, 9), min_size=mesh.data, max_size=mesh.data))
    return Plan(mesh, micro_batch=tuple(shares), rounds=draw(st.integers(pipeline, 6)))


@given(plans())
def test_each_smaller_plan_needs_less_and_the_last_one_comes_soon(plan: Plan) -> None:
    tried, global_batch = [plan], plan.global_batch
    while (smaller := with_smaller_footprint(plan)) is not None:
        before = (max(plan.shares), plan.recompute == "none", plan.mesh.replicate)
        after = (max(smaller.shares), smaller.recompute == "none", smaller.mesh.replicate)
        assert after < before
        assert smaller.global_batch == global_batch
        plan = smaller
        tried.append(plan)
        assert len(tried) < 20


@given(plans(), st.integers(1, 24))
def test_another_number_of_ranks_keeps_the_split_of_the_model_and_the_batch(plan: Plan, ranks: int) -> None:
    other = with_ranks(plan, ranks)
    assume(other is not None)
    assert other is not None
    assert other.mesh.size <= ranks
    assert other.global_batch == plan.global_batch
    assert (other.mesh.tensor, other.mesh.pipeline) == (plan.mesh.tensor, plan.mesh.pipeline)
    assert other.precision == plan.precision
    assert other.rounds >= other.mesh.pipeline


@pytest.mark.parametrize(
    ("before", "ranks", "after"),
    [
        ("replicate3 mb4", 2, "replicate2 mb6"),
        ("replicate4 mb2 bf16", 3, "replicate3 mb(3,3,2) bf16"),
        ("replicate2·shard2 mb4", 2, "shard2 mb8"),
        ("shard4 mb2 zero2", 3, "shard3 mb(3,3,2) zero2"),
        ("shard2 mb4 zero2", 1, "mb8"),
        ("replicate2·tensor2 mb4", 2, "tensor2 mb8"),
        ("replicate2·pipeline2 mb2×2", 2, "pipeline2 mb4×2"),
        ("replicate2 mb1×2", 4, "replicate4 mb1"),
        ("replicate8 mb2", 7, "replicate7 mb(3,3,2,2,2,2,2)"),
        ("tensor2 mb4", 3, "tensor2 mb4"),
        ("replicate2 mb1", 3, "replicate2 mb1"),
        ("replicate4 mb1 compress=bf16", 2, "replicate2 mb2 compress=bf16"),
        ("replicate2 mb1 compress=bf16", 1, "mb2"),
        ("tensor4 mb1", 3, None),
    ],
)
def test_plans_for_other_numbers_of_ranks(before: str, ranks: int, after: str | None) -> None:
    other = with_ranks(Plan.parse(before), ranks)
    assert other == (Plan.parse(after) if after is not None else None)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("replicate2 mb8", "replicate2 mb4×2"),
        ("replicate2 mb2", "replicate2 mb1×2"),
        ("replicate2 mb3", "replicate2 mb(2,1)×2"),
        ("replicate2 mb(6,2)", "replicate2 mb(3,1)×2"),
        ("replicate2 mb(2,1)", "replicate2 mb(2,1) recompute=full"),
        ("replicate2 mb1×8", "replicate2 mb1×8 recompute=full"),
        ("replicate2 mb1×8 recompute=full", "shard2 mb1×8 recompute=full"),
        ("shard2 mb1×8 recompute=full", None),
    ],
)
def test_plans_with_a_smaller_footprint(before: str, after: str | None) -> None:
    assert with_smaller_footprint(Plan.parse(before)) == (Plan.parse(after) if after is not None else None)


def test_a_slow_rank_gets_a_smaller_share() -> None:
    assert with_shares(Plan.parse("replicate2 mb4"), {1: 1 / 3}) == Plan.parse("replicate2 mb(6,2)")
    assert with_shares(Plan.parse("replicate2 mb4"), {1: 0.99}) is None
    assert with_shares(Plan.parse("tensor2 mb4"), {0: 0.3}) is None
    assert with_shares(Plan.parse("pipeline2·replicate2 mb4×2"), {1: 1 / 3}) is None


def test_other_shares_must_make_a_step_a_twentieth_shorter() -> None:
    plan = Plan.parse("replicate2 mb20")
    assert with_shares(plan, {1: 0.9}) == Plan.parse("replicate2 mb(21,19)")  # 21.1 instead of 22.2
    assert with_shares(plan, {1: 0.96}) is None


def test_many_ranks_have_even_shares() -> None:
    other = with_ranks(Plan(Mesh(replicate=10_000, shard=8), micro_batch=4), 9_900 * 8)
    assert other is not None
    assert (other.micro_batch, other.mesh.data) == (5, 64_000)
