"""A rank finds that it is slow when the others wait for it, and only then."""

from dataclasses import replace

import pytest

from onecurve.describe.plan import Plan
from onecurve.runtime.straggler import StragglerDetector
from onecurve.train.step_report import outcome

OUTCOME = outcome([1.0, 8.0, 4.0, *[0.0] * 6], 8)
NO_LONGER = (1.0, 0.0)


def told(
    waits: list[tuple[float, float]], plan: str = "replicate2 mb4", seconds: float = 0.5
) -> list[tuple[float, float]]:
    """What rank 1 says: its speed, and for how long. `waits`: of rank 1 and rank 0, step by step."""
    said: list[tuple[float, float]] = []
    now, own = [0.0], [0.0]
    detector = StragglerDetector(Plan.parse(plan), 1, lambda: own[0], lambda *told: said.append(told), lambda: now[0])
    for mine, other in waits:
        own[0] = mine
        detector.waited()
        detector.add(replace(OUTCOME, waited=mine + other, ranks_waited=2))
        now[0] += seconds
    return said


def test_a_slow_rank_says_its_speed_again_and_again() -> None:
    assert told([(0.0, 0.75)] * 40) == [(pytest.approx(0.25), seconds) for seconds in (5.0, 10.0, 15.0)]


def test_a_rank_that_is_no_longer_slow_says_so_once() -> None:
    said = told([(0.0, 0.75)] * 12 + [(0.3, 0.3)] * 20 + [(0.0, 0.75)] * 12)
    assert said == [(pytest.approx(0.25), 5.0), NO_LONGER, (pytest.approx(0.25), 5.0)]


@pytest.mark.parametrize(
    ("plan", "speed"),
    [("replicate2 mb(6,2)", 0.5 * 2 / 6), ("replicate2 mb(2,6)", 0.5 * 6 / 2), ("shard2 mb4", 0.5)],
)
def test_the_speed_is_that_for_equal_shares(plan: str, speed: float) -> None:
    assert told([(0.0, 0.5)] * 12, plan) == [(pytest.approx(speed), 5.0)]


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param([(0.2, 0.3)] * 100, id="about the same"),
        pytest.param([(0.7, 0.0)] * 100, id="the other one is slow"),
        pytest.param([(0.0, 0.8)] * 9 + [(0.3, 0.3)] + [(0.0, 0.8)] * 9, id="not for long enough"),
    ],
)
def test_a_rank_that_is_not_slow_says_nothing(waits: list[tuple[float, float]]) -> None:
    assert told(waits) == []


def test_many_short_steps_are_not_enough() -> None:
    assert told([(0.0, 0.8)] * 100, seconds=0.01) == []


def test_stages_of_a_pipeline_may_wait_for_each_other() -> None:
    assert told([(0.0, 0.8)] * 100, "replicate2·pipeline2 mb2×2") == []
