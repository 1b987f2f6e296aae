"""The suggestion of a run with a growing learning rate, with hand-worked numbers."""

import math

import pytest

from onecurve.study.learning_rates import smoothed, steepest


def test_the_first_loss_is_not_pulled_to_zero() -> None:
    """The weights 0.1, and 0.09 and 0.1, are divided by their sums."""
    assert smoothed([(0.1, 5.0), (0.2, 3.0)]) == [
        (0.1, pytest.approx(5.0)),
        (0.2, pytest.approx((0.09 * 5 + 0.1 * 3) / 0.19)),
    ]


def test_what_follows_divergence_is_left_out() -> None:
    falling = [(0.1 * n, 1.0) for n in range(1, 4)]
    assert [rate for rate, _ in smoothed([*falling, (0.4, math.inf), (0.5, 1.0)])] == [rate for rate, _ in falling]
    assert len(smoothed([*falling, (0.4, 1000.0), (0.5, 1.0)])) == 3
    assert len(smoothed([*falling, (0.4, 4.0), (0.5, 1.0)])) == 5  # larger, but not lost


def test_the_loss_falls_fastest_per_factor_of_the_rate() -> None:
    """The loss falls by 1 from each rate to the next. Between 0.2 and 0.3 the rates are closest, as factors."""
    rates = [0.01, 0.1, 0.2, 0.25, 0.3, 1.0, 9.0]
    smooth = [(rate, 9.0 - number) for number, rate in enumerate(rates)]
    assert steepest(smooth) == 0.25
    rising = [(rate, float(number)) for number, rate in enumerate(rates)]
    assert steepest(rising) == 1.0  # the loss rises most slowly there


def test_many_rates_are_compared_over_a_twentieth_of_them() -> None:
    """One jump of 5 between two of 60 rates is beyond a fall of 2 at each of ten others, over three rates."""
    loss, smooth = 100.0, []
    for number in range(60):
        loss -= 2.0 if 20 <= number < 30 else 5.0 if number == 50 else 0.0
        smooth.append((1.1**number, loss))
    assert 22 <= [rate for rate, _ in smooth].index(steepest(smooth)) <= 26
