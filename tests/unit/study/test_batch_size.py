"""What another batch size costs, from the gradient noise scale."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.study.batch_size import steps_factor, suggested_batch, suggested_lr


@pytest.mark.parametrize(
    ("batch", "noise", "expected"), [(32, 32.0, 32), (32, 100.0, 128), (32, 1e9, 512), (12, 1.0, 3), (32, 0.1, 2)]
)
def test_the_suggested_batch_is_close_to_the_noise_scale(batch: int, noise: float, expected: int) -> None:
    assert suggested_batch(batch, noise) == expected


@given(st.integers(1, 4096), st.integers(1, 4096), st.floats(0.1, 1e5))
def test_a_larger_batch_needs_fewer_steps_and_more_samples(one: int, other: int, noise: float) -> None:
    before, after = sorted((one, other))
    factor = steps_factor(before, after, noise)
    assert factor <= 1
    assert factor * after / before >= 1 - 1e-12


def test_the_learning_rate_follows_a_rule() -> None:
    assert suggested_lr(0.1, 32, 128, "linear") == pytest.approx(0.4)
    assert suggested_lr(0.1, 32, 128, "square root") == pytest.approx(0.2)
