"""A link is measured from the times of a small and a large collective."""

from onecurve.measure.links import _without_start


def test_the_start_is_subtracted() -> None:
    assert _without_start(1e-4, 1e-2) == 1e-2 - 1e-4


def test_a_small_collective_that_other_programs_slow_down_gives_no_infinite_bandwidth() -> None:
    assert _without_start(1.1e-2, 1e-2) == 1e-2
