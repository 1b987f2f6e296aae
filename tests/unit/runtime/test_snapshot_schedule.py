"""How often snapshots are taken."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.checkpoint.snapshot_interval import snapshot_interval
from onecurve.runtime.snapshot_schedule import SnapshotSchedule

SECONDS = st.floats(1e-4, 1e3)


@given(SECONDS, SECONDS, st.floats(1, 1e6))
def test_snapshots_cost_at_most_a_hundredth_of_the_time(copy: float, step: float, failures: float) -> None:
    interval = snapshot_interval(copy, step, failures)
    assert interval >= 1
    assert copy / (interval * step) <= 0.01 * (1 + 1e-6)


def test_the_interval_is_that_of_youngs_rule() -> None:
    assert snapshot_interval(0.1, 1.0, 20_000) == math.ceil(math.sqrt(2 * 0.1 * 20_000))


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def intervals(schedule: SnapshotSchedule, clock: Clock, steps: int, step_seconds: float, copy: float) -> list[int]:
    """Steps at which snapshots are taken."""
    taken = []
    for step in range(1, steps + 1):
        clock.time += step_seconds
        if schedule.due():
            schedule.taken(copy)
            taken.append(step)
    return taken


def test_a_given_number_of_steps_is_kept() -> None:
    clock = Clock()
    assert intervals(SnapshotSchedule(4, clock=clock), clock, 13, 1.0, 5.0) == [4, 8, 12]


def test_auto_measures_with_its_first_snapshots_and_then_follows_the_rule() -> None:
    clock = Clock()
    taken = intervals(SnapshotSchedule("auto", clock=clock), clock, 500, 0.1, 0.01)
    gaps = {after - before for before, after in pairwise(taken[2:])}
    assert all(gap == pytest.approx(math.sqrt(2 * 0.01 * 625) / 0.1, rel=0.1) for gap in gaps)


def test_what_steps_lose_while_a_snapshot_is_sent_counts_as_its_cost() -> None:
    """Copying takes 10 ms. Sending it takes four steps, each of which takes 0.2 s instead of 0.1 s."""
    clock, taken, sent = Clock(), list[int](), -1
    schedule = SnapshotSchedule("auto", clock=clock)
    for step in range(1, 3001):
        clock.time += 0.2 if step <= sent else 0.1
        if schedule.due(step < sent) and step >= sent:
            schedule.taken(0.01, is_on_its_way=True)
            clock.time += 0.01
            taken.append(step)
            sent = step + 4
    assert taken[-1] - taken[-2] == pytest.approx(0.41 / 0.01 / 0.1, rel=0.01)  # a hundredth of the time


def test_a_snapshot_that_is_always_on_its_way_is_taken_as_often_as_asked() -> None:
    schedule = SnapshotSchedule(1)
    for _ in range(3):
        assert schedule.due(is_on_its_way=True)
        schedule.taken(0.1, is_on_its_way=True)


def test_failures_make_snapshots_more_frequent() -> None:
    def gap(failures: int) -> int:
        clock = Clock()
        taken = intervals(SnapshotSchedule("auto", failures, 600.0, clock), clock, 300, 0.1, 0.01)
        return taken[-1] - taken[-2]

    assert gap(20) < gap(0) / 3
