"""Distinct ids in more samples than were counted."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.describe.table_use import RowCosts, RowSeconds, TableUse

FREE = RowCosts(*[RowSeconds(0.0, 0.0)] * 3)


def use(*seen: tuple[int, int], samples: int = 1 << 20) -> TableUse:
    return TableUse("item", 8, 1, seen, samples, FREE)


def test_ids_that_are_all_different_grow_with_the_samples() -> None:
    assert use((1, 3), (1024, 3072)).rows == pytest.approx(3 * (1 << 20))


def test_ids_that_have_all_been_seen_do_not_grow() -> None:
    assert use((1, 3), (512, 100), (1024, 100)).rows == pytest.approx(100)


def test_ids_grow_with_a_power_of_the_samples() -> None:
    powers = [(1 << n, round((1 << n) ** 0.5)) for n in range(0, 21, 2)]
    sampled = use(*powers[:6])
    for number, ids in powers:
        assert sampled.distinct(number) == pytest.approx(ids, rel=0.02)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8))
def test_more_samples_never_have_fewer_ids(added: list[int]) -> None:
    """And never more than as many as each sample brought in at first."""
    total, seen = 10, [(1, 10)]
    for index, more in enumerate(added):
        total += min(more, 10 << index)
        seen.append((2 << index, total))
    table = use(*seen)
    found = [table.distinct(samples) for samples in (0.5, 1, 1.5, 3, 7, 100, 10_000, 1_000_000)]
    assert all(few <= many * (1 + 1e-12) for few, many in pairwise(found))
    assert table.distinct(1_000_000) <= 10 * 1_000_000 * (1 + 1e-9)


def test_fewer_samples_than_were_counted_have_fewer_ids_in_proportion() -> None:
    assert use((4, 12), (8, 20)).distinct(2) == 6
    assert use((4, 12), (8, 20)).distinct(4) == 12
    assert use((4, 12)).distinct(8) == 24


def test_the_time_of_rows_is_a_constant_and_a_time_per_row() -> None:
    assert RowSeconds(per_call=2.0, per_row=0.5).of(6) == 5.0
