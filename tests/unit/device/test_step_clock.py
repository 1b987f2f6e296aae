"""The seconds of a step by cause."""

import time

import pytest

from onecurve.device.device import local_cpu
from onecurve.device.step_clock import StepClock, is_sampled, is_traced


def test_an_inner_cause_takes_its_time_from_the_outer_one() -> None:
    clock = StepClock()
    begin = time.perf_counter()
    clock.begin(local_cpu(), 1)
    with clock.measure("forward"):
        time.sleep(0.02)
        with clock.measure("tensor"):
            time.sleep(0.03)
        time.sleep(0.01)
    marks = clock.end()
    total = time.perf_counter() - begin
    assert [span.cause for span in marks.spans] == ["other", "forward", "tensor", "forward", "other"]
    assert marks.seconds["forward"] == pytest.approx(0.03, abs=0.01)
    assert marks.seconds["tensor"] == pytest.approx(0.03, abs=0.01)
    assert sum(marks.seconds.values()) == pytest.approx(total, abs=0.001)


def test_the_rest_of_a_context_can_get_another_cause() -> None:
    clock = StepClock()
    clock.begin(local_cpu(), 1)
    with clock.measure("backward"):
        clock.change("replicate")
        time.sleep(0.02)
    marks = clock.end()
    assert marks.seconds["replicate"] > 0.015
    assert marks.seconds["backward"] < 0.01
    assert [span.cause for span in marks.spans][-1] == "other"


def test_a_cause_can_be_inside_itself() -> None:
    clock = StepClock()
    clock.begin(local_cpu(), 1)
    with clock.measure("shard"), clock.measure("shard"):
        pass
    assert {span.cause for span in clock.end().spans} == {"other", "shard"}


def test_nothing_is_measured_outside_of_a_step() -> None:
    clock = StepClock()
    with clock.measure("tensor"):
        clock.change("shard")
    assert not clock.end()
    clock.begin(local_cpu(), 1)
    with clock.measure("forward"):
        pass
    assert clock.end().spans
    assert not clock.end()


def test_a_step_that_fails_does_not_disturb_the_next() -> None:
    clock = StepClock()
    clock.begin(local_cpu(), 1)
    with pytest.raises(ValueError, match="bad"), clock.measure("forward"):
        raise ValueError("bad")
    clock.begin(local_cpu(), 2)
    assert {span.cause for span in clock.end().spans} == {"other"}


def test_ever_fewer_steps_are_sampled() -> None:
    sampled = [step for step in range(1, 10_001) if is_sampled(step)]
    assert sampled[:4] == [8, 16, 24, 32]
    assert len([step for step in sampled if 1000 <= step < 2000]) in range(8, 17)
    assert len(sampled) < 120
    assert [step for step in range(1, 100) if is_traced(step)] == [1, 2, 4, 8, 16, 32, 64]
