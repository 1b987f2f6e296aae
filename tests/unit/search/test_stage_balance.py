import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.describe.costs import BlockChain
from onecurve.search import stage_balance
from onecurve.search.stage_balance import balance

costs = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=8)


def divisions(count: int, stages: int) -> list[tuple[int, ...]]:
    return [sizes for sizes in itertools.product(range(1, count + 1), repeat=stages) if sum(sizes) == count]


def most_expensive(costs: list, sizes: tuple[int, ...], first: tuple, last: tuple) -> tuple:
    ends = [0, *itertools.accumulate(sizes)]
    stages = [
        tuple(
            sum(cost[n] for cost in costs[begin:end])
            + (first[n] if k == 0 else 0)
            + (last[n] if k == len(sizes) - 1 else 0)
            for n in (0, 1)
        )
        for k, (begin, end) in enumerate(itertools.pairwise(ends))
    ]
    return max(stages)


@given(
    costs,
    st.integers(1, 4),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_no_other_division_has_a_cheaper_most_expensive_stage(
    costs: list, stages: int, first: tuple, last: tuple
) -> None:
    if stages > len(costs):
        return
    chosen = balance(BlockChain(tuple(costs), first, last), stages)
    best = min(most_expensive(costs, sizes, first, last) for sizes in divisions(len(costs), stages))
    assert sum(chosen) == len(costs)
    assert most_expensive(costs, chosen, first, last) == best


def test_a_heavy_head_takes_a_block_from_the_last_stage() -> None:
    assert balance(BlockChain(((1, 0),) * 8, last=(2, 0)), 2) == (5, 3)


def test_hundreds_of_blocks_are_divided_quickly() -> None:
    begin = time.perf_counter()
    assert balance(BlockChain(((1, 1),) * 480), 16) == (30,) * 16
    assert time.perf_counter() - begin < 3  # an exhaustive search took ten


def test_of_equally_long_stages_the_largest_memory_is_as_small_as_possible() -> None:
    assert balance(BlockChain(((0, 3), (0, 1), (0, 1), (0, 1))), 2) == (1, 3)
    assert balance(BlockChain(((0, 1), (0, 1), (0, 1), (0, 3))), 2) == (3, 1)
    assert balance(BlockChain(((0, 1),) * 6, first=(0, 2)), 2) == (2, 4)
    assert balance(BlockChain(((0, 1),) * 6, last=(0, 2)), 2) == (4, 2)


@given(st.lists(st.integers(0, 9), min_size=3, max_size=8), st.integers(2, 3))
def test_memory_decides_between_blocks_that_take_no_time(sizes: list[int], stages: int) -> None:
    costs = [(0, size) for size in sizes]
    chosen = balance(BlockChain(tuple(costs)), stages)
    best = min(most_expensive(costs, division, (0, 0), (0, 0)) for division in divisions(len(costs), stages))
    assert most_expensive(costs, chosen, (0, 0), (0, 0)) == best


def test_stages_are_not_filled_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, cost = [], stage_balance._StageDivider._cost

    def counting(*arguments: object) -> object:
        calls.append(arguments)
        return cost(*arguments)

    monkeypatch.setattr(stage_balance._StageDivider, "_cost", counting)
    chain = BlockChain(tuple((1.0 + n * n % 7, 1.0) for n in range(480)), first=(5.0, 0.0), last=(9.0, 0.0))
    assert len(balance(chain, 16)) == 16
    assert len(calls) < 1200  # walking through all 480 blocks for every limit takes 6,500
