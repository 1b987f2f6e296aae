"""The plan that is proved before training is small, and takes every path that the run's plan takes."""

import pytest

from onecurve.describe.plan import Plan
from onecurve.describe.plan_validation import validate
from onecurve.device.device import local_cluster
from onecurve.prove.reduced_plan import reduced_plan


@pytest.mark.parametrize(
    ("plan", "reduced"),
    [
        ("replicate64 mb8 bf16 compile compress=bf16", "replicate2 mb2 fp64"),
        ("replicate4·shard8 mb4×16 zero2 reduce=round", "replicate2·shard2 mb2×2 fp64 reduce=round zero2"),
        ("shard8·tensor8 mb1 recompute=full sequence", "shard2·tensor8 mb1 fp64 recompute=full sequence"),
        ("pipeline4·replicate8 mb2×32", "pipeline4·replicate2 mb2×4 fp64"),
        ("pipeline4 mb2×32 schedule=interleaved", "pipeline4 mb2×4 fp64 schedule=interleaved"),
        ("pipeline2·shard4 mb2×8 zero2 schedule=zero-bubble", "pipeline2·shard2 mb2×2 fp64 zero2 schedule=zero-bubble"),
        ("pipeline4 mb8 schedule=gpipe", "pipeline4 mb2 fp64 schedule=gpipe"),
        ("mb8×4 threads=1", "mb2×2 fp64"),
    ],
)
def test_a_plan_is_reduced_to_few_ranks_samples_and_rounds(plan: str, reduced: str) -> None:
    result = reduced_plan(Plan.parse(plan))
    assert str(result) == reduced
    validate(result, result.global_batch, local_cluster())


@pytest.mark.parametrize(
    ("plan", "shares"), [("replicate3 mb(6,3,3)", (3, 2)), ("shard2 mb(2,1)", (2, 1)), ("shard2 mb(3,9)", (3, 2))]
)
def test_uneven_shares_stay_uneven(plan: str, shares: tuple[int, ...]) -> None:
    assert reduced_plan(Plan.parse(plan)).micro_batch == shares
