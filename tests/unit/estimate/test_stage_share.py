from dataclasses import replace

import pytest

from onecurve.describe.plan import Plan
from onecurve.describe.profile import ModuleProfile, Profile, Work
from onecurve.estimate.stage_share import (
    largest_and_last_share,
    largest_share,
    parameters_per_rank,
    trainable_per_rank,
)


def module(count: int, parameters: int, trainable: int) -> ModuleProfile:
    return ModuleProfile(
        names=("b",) * count,
        parameters=parameters,
        trainable=trainable,
        parameter_bytes=0,
        trainable_bytes=0,
        work=Work(),
        activation_bytes=0,
        input_bytes=0,
    )


def profile(*blocks: ModuleProfile, order: tuple[int, ...] = ()) -> Profile:
    return Profile(
        samples=1,
        blocks=blocks,
        outside=module(0, 1000, 500),
        shared_activation_bytes=0,
        optimizer_tensors=2,
        order=order,
    )


TEN = profile(module(10, 7, 5))
HEAVY_FIRST = profile(module(1, 60, 30), module(3, 20, 10), order=(0, 1, 1, 1))


@pytest.mark.parametrize(
    ("plan", "stages", "expected"),
    [
        ("mb1", (), (0.0, 1.0)),
        ("pipeline2 mb1×2", (), (0.5, 0.5)),
        ("pipeline3 mb1×3", (), (0.4, 0.3)),  # 4, 3 and 3 blocks: the first ranks have the larger shares
        ("pipeline4 mb1×4", (), (0.3, 0.2)),
        ("pipeline3 mb1×3", (2, 3, 5), (0.3, 0.5)),
        ("pipeline2 mb1×2 schedule=interleaved", (4, 1, 3, 2), (0.7, 0.3)),  # stages 0 and 2 are on rank 0
    ],
)
def test_identical_blocks(plan: str, stages: tuple[int, ...], expected: tuple[float, float]) -> None:
    parsed = replace(Plan.parse(plan), stages=stages)
    assert largest_and_last_share(TEN, parsed, [7.0]) == pytest.approx(expected)
    assert largest_share(TEN, parsed, [7.0]) == pytest.approx(max(expected))


@pytest.mark.parametrize(
    ("plan", "stages", "expected"),
    [
        ("pipeline2 mb1×2", (1, 3), (0.5, 0.5)),
        ("pipeline2 mb1×2", (), (4 / 6, 2 / 6)),  # two blocks each
        ("pipeline3 mb1×3", (), (4 / 6, 1 / 6)),  # 2, 1 and 1 blocks
        ("pipeline2 mb1×2 schedule=interleaved", (1, 1, 1, 1), (4 / 6, 2 / 6)),
    ],
)
def test_blocks_of_different_weight(plan: str, stages: tuple[int, ...], expected: tuple[float, float]) -> None:
    parsed = replace(Plan.parse(plan), stages=stages)
    assert largest_and_last_share(HEAVY_FIRST, parsed, [3.0, 1.0]) == pytest.approx(expected)


def test_blocks_in_unknown_order_count_the_same() -> None:
    unknown = replace(HEAVY_FIRST, order=())
    assert largest_and_last_share(unknown, Plan.parse("pipeline2 mb1×2"), [3.0, 1.0]) == (0.5, 0.5)


def test_blocks_without_weight_and_models_without_blocks() -> None:
    plan = Plan.parse("pipeline2 mb1×2")
    assert largest_and_last_share(HEAVY_FIRST, plan, [0.0, 0.0]) == (0.0, 0.0)
    assert largest_and_last_share(profile(), plan, []) == (0.0, 0.0)


def test_parameters_of_the_fullest_rank() -> None:
    plan = Plan.parse("pipeline2 mb1×2")
    assert parameters_per_rank(TEN, plan) == 35 + 1000
    assert trainable_per_rank(TEN, plan) == 25 + 500
    assert parameters_per_rank(HEAVY_FIRST, plan) == pytest.approx(80 + 1000)
    assert trainable_per_rank(HEAVY_FIRST, plan) == pytest.approx(40 + 500)
    assert parameters_per_rank(HEAVY_FIRST, Plan.parse("mb1")) == 120 + 1000
