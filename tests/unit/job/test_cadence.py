"""How often something is done."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onecurve as oc
from onecurve.job.cadence import TrainingPoint, is_reached
from onecurve.job.schedule import Schedule


@given(st.integers(1, 50), st.integers(1, 500), st.integers(1, 64))
def test_every_epoch_is_reached_once(batch: int, epoch: int, steps: int) -> None:
    points = [TrainingPoint(step, step * batch // epoch) for step in range(steps + 1)]
    reached = [is_reached("epoch", before, now) for before, now in pairwise(points)]
    expected = len({point.epochs for point in points}) - 1
    assert sum(reached) == expected


def test_steps_that_are_left_out_are_not_lost() -> None:
    assert is_reached(10, TrainingPoint(8, 0), TrainingPoint(12, 0))
    assert not is_reached(10, TrainingPoint(10, 0), TrainingPoint(12, 0))
    assert not is_reached(None, TrainingPoint(0, 0), TrainingPoint(100, 9))


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True, "epochs", "step"])
def test_anything_else_is_refused(wrong: object) -> None:
    with pytest.raises(oc.OnecurveError, match="every must be an integer of at least 1, or 'epoch'"):
        oc.Save(every=wrong)  # type: ignore[arg-type]
    with pytest.raises(oc.OnecurveError, match="every must be an integer of at least 1, or 'epoch'"):
        oc.Evaluate(lambda: [], every=wrong)  # type: ignore[arg-type]


def test_a_warmup_in_steps_as_a_fraction_or_in_epochs() -> None:
    for warmup in (30, 0.03, "3 epochs"):
        assert Schedule("linear", warmup).warmup_steps(1000, epoch_steps=10.0) == 30
    assert oc.cosine(warmup="1 epoch").factor(4, 100, 10.0) == pytest.approx(0.5)
    assert oc.constant(warmup=0.1).factor(49, 1000) == pytest.approx(0.5)
    for wrong in (-1, 1.5, "epoch", "2 steps", True):
        with pytest.raises(oc.OnecurveError, match="warmup must be"):
            oc.linear(warmup=wrong)  # type: ignore[arg-type]
