import pytest

from onecurve.describe.plan import Plan
from onecurve.search.simplicity import complexity, why_less_simple


@pytest.mark.parametrize(
    ("simpler", "other", "why"),
    [
        ("mb16", "replicate2 mb8", "1 axis instead of 0"),
        ("shard8 mb1×8 zero2 recompute=full", "replicate2·shard4 mb1×8", "2 axes instead of 1"),
        ("shard8 mb8", "shard8 mb8 zero2", "more options (zero2)"),
        ("shard8 mb8", "shard8 mb4×2", "more options (gradient accumulation)"),
        ("shard8 mb8", "replicate8 mb8 recompute=selective", "more options (recompute=selective)"),
        ("shard2 mb4", "shard2 mb(5,3)", "more options (uneven shares)"),
        ("mb8 fp32", "mb8 bf16", "more options (bf16)"),
        ("shard4 mb2×2", "shard4 mb2×2 reduce=round", "more options (reduce=round)"),
        ("tensor4 mb8", "tensor4 mb8 sequence", "more options (sequence)"),
        ("pipeline4 mb2×4", "pipeline4 mb2×4 schedule=zero-bubble", "more options (schedule=zero-bubble)"),
        ("pipeline4 mb2×4", "pipeline4 mb2×4 schedule=interleaved", "more options (schedule=interleaved)"),
        ("replicate8 mb8", "shard8 mb8", "shard instead of replicate"),
        ("shard8 mb8", "tensor8 mb64", "tensor instead of shard"),
        ("tensor8 mb64", "pipeline8 mb8×8", "pipeline instead of tensor"),
        ("replicate8 mb8", "replicate16 mb4", "16 ranks instead of 8"),
    ],
)
def test_which_plan_is_simpler_and_why(simpler: str, other: str, why: str) -> None:
    assert complexity(Plan.parse(simpler)) < complexity(Plan.parse(other))
    assert why_less_simple(Plan.parse(other), Plan.parse(simpler)) == why
    assert why_less_simple(Plan.parse(simpler), Plan.parse(other)) == ""


def test_equally_simple_plans() -> None:
    for one, other in (
        ("shard8 mb2×4", "shard8 mb1×8"),
        ("pipeline4 mb1×8", "pipeline4 mb8 schedule=gpipe"),
        ("shard8 mb8 zero2", "shard8 mb8 recompute=full"),
    ):
        assert complexity(Plan.parse(one)) == complexity(Plan.parse(other))
