import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.describe.arithmetic import ceil_log2, divisors, interpolate


@given(st.integers(1, 2000))
def test_divisors_are_all_numbers_that_divide(number: int) -> None:
    assert divisors(number) == [candidate for candidate in range(1, number + 1) if number % candidate == 0]


@pytest.mark.parametrize(
    ("x", "expected"),
    [(-5.0, 10.0), (0.0, 10.0), (1.0, 15.0), (2.0, 20.0), (5.0, 50.0), (6.0, 60.0), (99.0, 60.0)],
)
def test_interpolation_is_linear_between_points_and_constant_outside(x: float, expected: float) -> None:
    assert interpolate([(0.0, 10.0), (2.0, 20.0), (6.0, 60.0)], x) == pytest.approx(expected)


def test_one_point_is_a_constant() -> None:
    assert [interpolate([(3.0, 7.0)], x) for x in (0.0, 3.0, 9.0)] == [7.0, 7.0, 7.0]


@pytest.mark.parametrize(("count", "depth"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_depth_of_a_binary_tree(count: int, depth: int) -> None:
    assert ceil_log2(count) == depth
