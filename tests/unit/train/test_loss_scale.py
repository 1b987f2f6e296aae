"""Dynamic loss scaling: the scale falls after an overflow and grows after many finite steps."""

from onecurve.train.loss_scale import LossScale


def test_a_step_that_is_not_finite_halves_the_scale() -> None:
    scale = LossScale(1024.0, good_steps=7)
    scale.update(finite=False)
    assert (scale.value, scale.good_steps) == (512.0, 0)


def test_2000_finite_steps_in_a_row_double_the_scale() -> None:
    scale = LossScale(1024.0)
    for _ in range(1999):
        scale.update(finite=True)
    assert scale.value == 1024.0
    scale.update(finite=True)
    assert (scale.value, scale.good_steps) == (2048.0, 0)


def test_an_overflow_starts_the_count_again() -> None:
    scale = LossScale(1024.0, good_steps=1999)
    scale.update(finite=False)
    scale.update(finite=True)
    assert (scale.value, scale.good_steps) == (512.0, 1)


def test_the_scale_does_not_fall_below_1() -> None:
    scale = LossScale(2.0)
    for _ in range(5):
        scale.update(finite=False)
    assert scale.value == 1.0


def test_the_scale_starts_as_that_of_torch() -> None:
    assert LossScale().value == 2.0**16
