"""The order of a training with a warm-up on a part of the data."""

from hypothesis import given
from hypothesis import strategies as st

from onecurve.data.order import Order
from onecurve.data.warmup_order import WarmUpOrder


def test_the_first_samples_are_repeated_and_then_the_order_begins_anew() -> None:
    order = Order([10], seed=3)
    offsets = [sample.offset for sample in order.samples(0, 10)]
    warm = WarmUpOrder(order, warmup=8, part=0.25)
    assert [sample.offset for sample in warm.samples(0, 8)] == (offsets[:3] * 3)[:8]
    assert [sample.offset for sample in warm.samples(8, 18)] == offsets
    assert warm.samples(8, 30).epochs.tolist() == [0] * 10 + [1] * 10 + [2] * 2


@given(st.integers(1, 40), st.floats(0.01, 1), st.integers(0, 60), st.integers(0, 30), st.integers(0, 30))
def test_a_range_is_the_same_in_parts(warmup: int, part: float, begin: int, first: int, second: int) -> None:
    warm = WarmUpOrder(Order([17], seed=3), warmup, part)
    middle, end = begin + first, begin + first + second
    assert [*warm.samples(begin, end)] == [*warm.samples(begin, middle), *warm.samples(middle, end)]
