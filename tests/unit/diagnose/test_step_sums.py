"""Sums over steps, and what of a run counts, with hand-worked numbers."""

import math
from pathlib import Path

import pytest

from onecurve.describe.record import TraceRecord
from onecurve.diagnose.history_reader import read_history
from onecurve.diagnose.step_sums import PARTS, OwnParts, Parts, SharedSteps
from onecurve.diagnose.traces import aligned_traces
from onecurve.report.sink import TraceFile
from onecurve.runs.folder import traces_file
from synthetic_run import write_run


def test_the_spread_is_how_much_longer_the_last_rank_works_than_the_average() -> None:
    shared = SharedSteps(ranks=2, first=2)
    for step, one, other in ((1, 1.0, 9.0), (2, 1.0, 3.0), (3, 2.0, 2.0)):
        shared.add(step, {"forward": one, "replicate": 5.0}, 0.0)
        shared.add(step, {"forward": other, "replicate": 5.0}, 0.0)
    shared.add(4, {"forward": 9.0}, 0.0)  # one rank has not recorded it
    shared.add(5, {"step": 9.0}, 0.0)
    shared.add(5, {"step": 1.0}, 0.0)
    assert shared.spread() == pytest.approx((1.0 + 0.0) / 2)
    assert shared.worked_spread() == pytest.approx(0.5)
    assert SharedSteps(2, 1).spread() == 0.0


def test_a_rank_without_a_core_has_not_worked() -> None:
    """Waiting for data takes no CPU time, and is no interruption."""
    shared = SharedSteps(ranks=2, first=1)
    shared.add(1, {"data": 1.0, "forward": 2.0}, cpu_seconds=2.0)
    shared.add(1, {"data": 1.0, "forward": 4.0}, cpu_seconds=2.0)
    assert shared.spread() == pytest.approx(1.0)
    assert shared.worked_spread() == pytest.approx(0.0)


def test_means_of_equal_parts_of_a_run() -> None:
    parts = OwnParts(4)
    for step, seconds in ((1, 1.0), (2, 2.0), (4, 4.0)):
        parts.add(step, 1, seconds)
    assert parts.means()[:2] == [1.0, 2.0]
    assert math.isnan(parts.means()[2])
    assert parts.means()[3] == 4.0
    long = OwnParts(240)
    for step in range(1, 241):
        long.add(step, 1, float(step))
    assert long.means()[:2] == [1.5, 3.5]
    assert long.means()[-1] == 239.5
    intervals = OwnParts(8)
    intervals.add(4, 4, 8.0)  # steps 1 to 4 are in the middle of the first half
    assert [n for n, mean in enumerate(intervals.means()) if not math.isnan(mean)] == [2]
    assert intervals.means()[2] == 2.0


@pytest.mark.parametrize("steps", [1, PARTS, PARTS + 1, 2 * PARTS, 2 * PARTS + 1, 5 * PARTS])
def test_neighbouring_steps_are_joined_when_there_are_many(steps: int) -> None:
    sums = Parts()
    for step in range(1, steps + 1):
        sums.add(step, {"forward": float(step)})
    merged = sums.merged()
    assert len(merged) <= PARTS
    assert sum(count for count, _ in merged) == steps
    assert len({count for count, _ in merged[:-1]}) <= 1
    step = 0
    for count, seconds in merged:
        assert seconds["forward"] == sum(range(step + 1, step + count + 1))
        step += count


@pytest.mark.parametrize(("steps", "first"), [(1, 1), (2, 2), (20, 3), (39, 4), (49, 5), (50, 6), (500, 6)])
def test_the_first_tenth_of_the_steps_does_not_count_up_to_five(tmp_path: Path, steps: int, first: int) -> None:
    history = read_history(write_run(tmp_path, steps=steps))
    assert history.first_counted == first
    assert [rank.steps for rank in history.ranks] == [steps - first + 1] * 2


def test_sums_are_over_the_counted_steps(tmp_path: Path) -> None:
    """Steps take as many seconds as their number; of 20, the first two do not count."""
    fields = {name: lambda _, step: float(step) for name in ("loading_seconds", "cpu_seconds")}
    write_run(tmp_path, steps=20, times=lambda rank, step: {"forward": step + rank, "evaluation": 1.0}, **fields)
    history = read_history(tmp_path)
    total = sum(range(3, 21))
    for rank in history.ranks:
        assert rank.loading_seconds == rank.cpu_seconds == total
        assert rank.mean("forward") == pytest.approx(total / 18 + rank.rank)
        assert rank.last_step == 20
    assert history.ranks[0].deviation == pytest.approx(math.sqrt((18**2 - 1) / 12))
    assert history.spread == pytest.approx(0.5)
    assert list(history.columns.seconds[:2]) == [2.0, 3.0]
    assert list(history.columns.paused[:2]) == [1.0, 1.0]
    assert list(history.columns.own[:2]) == [1.0, 2.0]


def test_a_trace_of_an_earlier_generation_is_left_out(tmp_path: Path) -> None:
    for rank, generation in ((0, 1), (1, 2), (2, 2)):
        traces = TraceFile(traces_file(tmp_path, rank))
        traces.write(TraceRecord(7, 100.0 * rank, (("forward", 0.0, 0.1),), 0.5, generation))
        traces.close()
    assert sorted(aligned_traces(tmp_path, [0, 1, 2])[7]) == [1, 2]
    assert aligned_traces(tmp_path, [5]) == {}
