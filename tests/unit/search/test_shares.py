import itertools

from hypothesis import given
from hypothesis import strategies as st

from onecurve.search.shares import by_speed


@given(st.integers(3, 9), st.lists(st.sampled_from([0.5, 1.0, 1.5, 3.0]), min_size=1, max_size=3))
def test_no_other_shares_are_ready_earlier(samples: int, speeds: list[float]) -> None:
    def ready(shares: tuple[int, ...]) -> float:
        return max(share / speed for share, speed in zip(shares, speeds, strict=True))

    ways = [each for each in itertools.product(range(1, samples + 1), repeat=len(speeds)) if sum(each) == samples]
    found = by_speed(samples, speeds)
    assert sum(found) == samples
    assert ready(found) == min(map(ready, ways))


def test_a_rank_of_half_the_speed_takes_half_as_much() -> None:
    assert by_speed(12, [0.5, 1.0]) == (4, 8)
