"""Where the rows of embedding tables are best."""

import math
from dataclasses import replace

import pytest

from onecurve.describe.cluster import Link
from onecurve.describe.plan import Plan
from onecurve.describe.table_use import RowCosts, RowSeconds, TableUse
from onecurve.estimate.collective import AxisPlacement
from onecurve.estimate.tables import TableLimits, best_placements, stored_bytes, table_bytes, table_seconds

GB = 1 << 30
COSTS = RowCosts(lookup=RowSeconds(1e-5, 2e-7), merge=RowSeconds(1e-5, 1e-7), update=RowSeconds(1e-5, 4e-7))
AXIS = AxisPlacement(8, 8, Link(1e9, 5e-5), Link(1e9, 5e-5))
PLAN = Plan.parse("replicate8 mb64")


def table(name: str, ids: int, width: int = 64) -> TableUse:
    """A table of which every sample uses one id of `ids`."""
    seen = tuple((1 << n, min(1 << n, ids)) for n in range(15))
    return TableUse(name, width, 1, seen, 10**9, COSTS)


def test_small_tables_are_replicated_and_large_ones_divided() -> None:
    small, large = table("country", 100), table("user", 10**9)
    found = best_placements([small, large], PLAN, 64, AXIS, TableLimits(10 * GB, math.inf))
    assert found == {"country": "replicated", "user": "row_sharded"}
    assert table_bytes(large, "row_sharded", PLAN) > 10 * GB


def test_a_table_that_the_ranks_cannot_hold_is_served() -> None:
    rows = {"item": 10**7, "user": 10**10}
    tables = [table("country", 100), *(replace(table(name, 10**12), samples=each) for name, each in rows.items())]
    found = best_placements(tables, PLAN, 64, AXIS, TableLimits(1 * GB, 50 * GB))
    assert found == {"country": "replicated", "item": "row_sharded", "user": "served"}
    assert table_bytes(tables[2], "served", PLAN) == 0


def test_a_table_that_does_not_fit_is_divided() -> None:
    small = table("country", 100)
    needed = table_bytes(small, "replicated", PLAN)
    assert best_placements([small], PLAN, 64, AXIS, TableLimits(needed, math.inf)) == {"country": "replicated"}
    assert best_placements([small], PLAN, 64, AXIS, TableLimits(needed - 1, math.inf)) == {"country": "row_sharded"}


def test_the_placement_that_is_chosen_is_the_faster_one() -> None:
    for ids in (10, 100, 1_000, 10_000, 10**9):
        for rounds in (1, 4):
            use, plan = table("item", ids), Plan.parse(f"replicate8 mb64×{rounds}")
            seconds = {name: table_seconds(use, name, plan, 64, AXIS) for name in ("row_sharded", "replicated")}
            (chosen,) = best_placements([use], plan, 64, AXIS, TableLimits(10**15, math.inf)).values()
            assert seconds[chosen] == min(seconds.values())


def test_one_rank_has_all_rows() -> None:
    alone = AxisPlacement(1, 1, Link(1e9, 5e-5), Link(1e9, 5e-5))
    user, plan = table("user", 10**9), Plan.parse("mb64")
    assert best_placements([user], plan, 64, alone, TableLimits(0.0, math.inf)) == {"user": "replicated"}
    assert best_placements([user], plan, 64, alone, TableLimits(0.0, GB)) == {"user": "served"}


def test_the_seconds_of_each_placement_by_hand() -> None:
    """Every sample has one id of its own; 4 samples per round and two rounds, on two ranks of two hosts."""
    costs = RowCosts(lookup=RowSeconds(0.0, 1.0), merge=RowSeconds(0.0, 10.0), update=RowSeconds(0.0, 100.0))
    use = TableUse("item", 4, 1, ((1, 1), (1024, 1024)), 10**6, costs)
    plan, alone = Plan.parse("replicate2 mb4×2"), Plan.parse("mb4×2")
    fast = Link(latency=1e-9, bandwidth=1e12)
    axis = AxisPlacement(2, 2, fast, fast)
    reading, merging = 2 * 4 * 1.0, 2 * 8 * 10.0
    one = AxisPlacement(1, 1, fast, fast)
    assert table_seconds(use, "replicated", alone, 4, one) == pytest.approx(reading + merging + 8 * 100)
    replicated = reading + merging + 16 * 10 + 16 * 100
    assert table_seconds(use, "replicated", plan, 4, axis) == pytest.approx(replicated, rel=1e-3)
    sharded = reading + merging + 2 * 4 * 10 + 8 * 10 + 16 / 2 * 100
    assert table_seconds(use, "row_sharded", plan, 4, axis) == pytest.approx(sharded, rel=1e-3)
    served = reading + merging + 2 * (8 * 1) + 2 * (16 * 10) + 16 * 100
    assert table_seconds(use, "served", plan, 4, axis) == pytest.approx(served, rel=1e-3)
    # Rows of 4 numbers of 4 bytes with ids of 8 bytes, over a link of 24 bytes per second: 1 s per row and way.
    slow = AxisPlacement(2, 2, Link(latency=1e-9, bandwidth=24.0), fast)
    assert table_seconds(use, "served", plan, 4, slow) - served == pytest.approx(2 * 8 + 2 * 8, rel=1e-3)


def test_the_bytes_of_all_rows_by_hand() -> None:
    use = replace(table("user", 10**9, width=64), state_width=2)
    per_row = 8 + 32 + (64 + 2) * 4  # id, its place in the index, row and optimizer state
    assert stored_bytes(use, PLAN) == pytest.approx(use.rows * per_row, rel=1e-12)
    assert table_bytes(use, "replicated", PLAN) == stored_bytes(use, PLAN)


def test_tables_that_gain_the_most_per_byte_are_replicated_first() -> None:
    small, large = table("country", 100), table("city", 2000)
    room = table_bytes(large, "replicated", PLAN) + table_bytes(small, "replicated", PLAN) - 1
    for tables in ([small, large], [large, small]):
        found = best_placements(tables, PLAN, 64, AXIS, TableLimits(room, math.inf))
        assert found == {"country": "replicated", "city": "row_sharded"}
