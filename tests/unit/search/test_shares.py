import itertools

from hypothesis import given
from hypothesis import strategies as st

from onecurve.search.shares import shares_by_speed


@given(st.integers(3, 9), st.lists(st.sampled_from([0.5, 1.0, 1.5, 3.0]), min_size=1, max_size=3))
def test_no_other_shares_finish_earlier(samples: int, speeds: list[float]) -> None:
    def finish_time(shares: tuple[int, ...]) -> float:
        return max(share / speed for share, speed in zip(shares, speeds, strict=True))

    candidates = [
        shares for shares in itertools.product(range(1, samples + 1), repeat=len(speeds)) if sum(shares) == samples
    ]
    chosen = shares_by_speed(samples, speeds)
    assert sum(chosen) == samples
    assert finish_time(chosen) == min(map(finish_time, candidates))


def test_a_rank_of_half_the_speed_takes_half_as_much() -> None:
    assert shares_by_speed(12, [0.5, 1.0]) == (4, 8)


def test_every_rank_has_a_sample() -> None:
    assert shares_by_speed(3, [1.0, 100.0, 1.0]) == (1, 1, 1)
    assert shares_by_speed(4, [1.0, 100.0, 1.0]) == (1, 2, 1)


def test_of_equal_ranks_the_first_have_the_larger_shares() -> None:
    assert shares_by_speed(5, [1.0, 1.0, 1.0]) == (2, 2, 1)
