"""Plans on both sides of every limit; test_plan.py tests what the messages suggest."""

import pytest

from onecurve.describe.cluster import Cluster
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.plan_validation import validate

CPU = Cluster.of("cpu", 2, 8 << 30, 2)
GPU = Cluster.of("cuda", 4, 1 << 34, 8)


@pytest.mark.parametrize(
    "text",
    [
        "mb32",
        "mb32 compile",
        "mb32 reduce=round",
        "mb32 threads=2",
        "shard2 mb16 zero2",
        "shard2 mb16 compress=bf16",
        "replicate2 mb16 compress=bf16",
        "replicate8 mb4",  # ranks share the cores of a CPU host
        "replicate2 mb(17,15)",
        "tensor2 mb32",
        "tensor2 mb32 sequence",
        "pipeline2 mb16×2",
        "pipeline2 mb8×4 recompute=full compile",
        "pipeline2 mb32 schedule=gpipe",
        "pipeline2 mb32 schedule=interleaved",
        "pipeline2 mb16×2 schedule=interleaved",
        "pipeline4 mb16×2 schedule=interleaved",
        "pipeline2 mb8×4 schedule=interleaved recompute=full compile",
        "pipeline2 mb8×4 schedule=zero-bubble",
        "pipeline2 mb8×4 schedule=zero-bubble reduce=round",  # nothing is reduced over one data-parallel rank
        "pipeline2·replicate2 mb4×4 schedule=zero-bubble",
        "pipeline2·shard2 mb4×4 schedule=zero-bubble zero2",
    ],
)
def test_plans_that_can_run(text: str) -> None:
    validate(Plan.parse(text), 32, CPU)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("expert2 mb32", "'expert'"),
        ("tensor2 mb32 compile", "remove compile"),
        ("replicate2 mb16 sequence", "remove sequence"),
        ("tensor2 mb32 compress=fp16", "compress=fp16"),
        ("replicate2 mb16 zero2", "remove zero2"),
        ("pipeline4 mb16×2", "at least 4 rounds"),
        ("pipeline2 mb8×4 schedule=zero-bubble recompute=selective", "remove recompute=selective"),
        ("pipeline2·replicate2 mb4×4 schedule=zero-bubble reduce=round", "remove reduce=round"),
        ("pipeline2·shard2 mb4×4 schedule=zero-bubble", "add zero2"),
        ("pipeline2·shard2 mb4×4 schedule=zero-bubble zero2 reduce=round", "remove reduce=round"),
    ],
)
def test_plans_that_cannot_run(text: str, words: str) -> None:
    with pytest.raises(OnecurveError, match=words):
        validate(Plan.parse(text), 32, CPU)


@pytest.mark.parametrize(
    ("schedule", "pipeline", "rounds", "runs"),
    [
        ("interleaved", 4, 3, True),  # fewer rounds than ranks are one group
        ("interleaved", 4, 6, True),  # one group of six
        ("interleaved", 4, 8, True),
        ("interleaved", 4, 9, False),  # two groups cannot share nine rounds
        ("interleaved", 4, 10, True),
        ("zero-bubble", 4, 13, False),
        ("zero-bubble", 4, 15, True),  # three groups of five
    ],
)
def test_rounds_must_come_in_equal_groups(schedule: str, pipeline: int, rounds: int, runs: bool) -> None:
    plan = Plan(Mesh(pipeline=pipeline), 1, rounds, schedule=schedule)
    if runs:
        validate(plan, rounds, CPU)
    else:
        with pytest.raises(OnecurveError, match=f"multiple of {pipeline}"):
            validate(plan, rounds, CPU)


@pytest.mark.parametrize(
    ("schedule", "stages", "runs"),
    [
        ("1f1b", (3, 3), True),
        ("gpipe", (3, 3), True),
        ("gpipe", (2, 2, 1, 1), False),
        ("interleaved", (2, 2, 1, 1), True),
        ("interleaved", (2, 2, 2), False),
        ("zero-bubble", (2, 2, 1, 1), True),
    ],
)
def test_numbers_of_stages(schedule: str, stages: tuple[int, ...], runs: bool) -> None:
    plan = Plan(Mesh(pipeline=2), 8, 4, schedule=schedule, stages=stages)
    if runs:
        validate(plan, 32, CPU)
    else:
        with pytest.raises(OnecurveError, match=f"{len(stages)} stages"):
            validate(plan, 32, CPU)


def test_accelerators_must_suffice_and_have_no_threads() -> None:
    validate(Plan.parse("replicate4 mb8"), 32, GPU)
    with pytest.raises(OnecurveError, match="8 ranks of this host need a device each, but it has 4"):
        validate(Plan.parse("replicate8 mb4"), 32, GPU)
    validate(Plan.parse("replicate8 mb4"), 32, GPU, local_ranks=4)
    with pytest.raises(OnecurveError, match="threads"):
        validate(Plan.parse("mb32 threads=2"), 32, GPU)


@pytest.mark.parametrize(
    ("text", "batch", "suggestion"),
    [
        ("mb8×3", 32, "try 1, 2, 4, 8, 16, 32"),
        ("mb8×3", 128, "try 1, 2, 4, 8, 16, 32, 64$"),  # more than 64 rounds are not listed
        ("mb8×3", 130, "try 1, 2, 5, 10, 13, 26$"),
        ("mb9×4", 32, "try mb8×4 fp32"),
        ("replicate8 mb1", 8, None),
        ("replicate8 mb2", 8, "try replicate8 mb1 fp32"),
        ("replicate8 mb1×2", 8, "4 samples per round for 8 data-parallel ranks"),
    ],
)
def test_another_global_batch_suggests_what_fits(text: str, batch: int, suggestion: str | None) -> None:
    if suggestion is None:
        validate(Plan.parse(text), batch, CPU)
        return
    with pytest.raises(OnecurveError) as refused:
        validate(Plan.parse(text), batch, CPU)
    parts = str(refused.value).rstrip(")").rpartition("(")[2]
    assert suggestion.rstrip("$") in parts
    assert not suggestion.endswith("$") or parts.endswith(suggestion.rstrip("$"))
