"""A rank finds that it is slow when the others wait for it, and only then."""

from dataclasses import replace

import pytest

from onecurve.describe.plan import Plan
from onecurve.runtime.straggler import StragglerDetector
from onecurve.train.step_report import outcome

OUTCOME = outcome([1.0, 8.0, 4.0, *[0.0] * 6], 8)


def speeds_told(waits: list[tuple[float, float]], plan: str = "replicate2 mb4", seconds: float = 0.5) -> list[float]:
    """What rank 1 says. `waits`: of rank 1 and rank 0, step by step."""
    told: list[float] = []
    now, own = [0.0], [0.0]
    slow = StragglerDetector(Plan.parse(plan), 1, lambda: own[0], lambda speed, _: told.append(speed), lambda: now[0])
    for mine, other in waits:
        own[0] = mine
        slow.waited()
        slow.add(replace(OUTCOME, waited=mine + other, ranks_waited=2))
        now[0] += seconds
    return told


def test_a_slow_rank_says_its_speed_and_says_it_again() -> None:
    assert speeds_told([(0.0, 0.75)] * 40) == [pytest.approx(0.25)]
    assert speeds_told([(0.0, 0.75)] * 140) == [pytest.approx(0.25)] * 4


def test_a_rank_with_a_smaller_share_has_a_smaller_speed() -> None:
    assert speeds_told([(0.0, 0.5)] * 40, "replicate2 mb(6,2)") == [pytest.approx(0.25)]


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param([(0.2, 0.3)] * 100, id="about the same"),
        pytest.param([(0.7, 0.0)] * 100, id="the other one is slow"),
        pytest.param([(0.0, 0.8)] * 9 + [(0.3, 0.3)] + [(0.0, 0.8)] * 9, id="not for long enough"),
    ],
)
def test_a_rank_that_is_not_slow_says_nothing(waits: list[tuple[float, float]]) -> None:
    assert speeds_told(waits) == []


def test_many_short_steps_are_not_enough() -> None:
    assert speeds_told([(0.0, 0.8)] * 100, seconds=0.01) == []
