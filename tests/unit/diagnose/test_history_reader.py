"""Reading the records of a whole run."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from onecurve.describe.convert import to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import EndRecord, ExitRecord, GenerationRecord, Record, StartRecord
from onecurve.diagnose.history_reader import read_history
from onecurve.diagnose.step_sums import PARTS
from onecurve.diagnose.traces import aligned_traces
from onecurve.diagnose.wall_time import wall_time
from onecurve.report.intervals import Intervals
from onecurve.report.sink import JsonLines
from onecurve.runs.folder import records_file
from synthetic_run import STEP, write_run


def test_sizes_do_not_grow_with_the_steps(tmp_path: Path) -> None:
    history = read_history(write_run(tmp_path, ranks=3, steps=2000, plan="replicate3 mb1"))
    assert len(history.columns) == 2000
    assert PARTS / 2 <= len(history.causes) <= PARTS
    assert sum(steps for steps, _ in history.causes) == 2000
    assert all(len(rank.own) == PARTS for rank in history.ranks)
    assert [rank.steps for rank in history.ranks] == [1995, 1995, 1995]
    assert history.first_counted == 6


def test_a_run_in_progress_and_one_without_a_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", ends=False)
    path = records_file(folder, 1)
    path.write_bytes(path.read_bytes()[:-20])  # a line that is being written
    records_file(folder, 0).open("a").write('{"step": 61')
    assert len(read_history(folder).columns) == 60
    with pytest.raises(OnecurveError, match="no run's folder"):
        read_history(tmp_path / "nothing")
    empty = write_run(tmp_path / "empty", steps=0)
    with pytest.raises(OnecurveError, match="has not done a step yet"):
        read_history(empty)


def test_records_of_older_versions_are_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    path = records_file(folder, 0)
    path.write_text(path.read_text().replace('"version":3', '"version":2'))
    with pytest.raises(OnecurveError, match="recorded by an older onecurve"):
        read_history(folder)


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    sink = JsonLines(records_file(folder, 0))
    sink.write(replace(STEP, step=61, loss=math.nan, gradient_norm=math.inf, seconds={"forward": 0.1}))
    history = read_history(folder)
    assert math.isnan(history.columns.loss[-1])
    assert len(history.columns) == 61


def test_lost_steps_recovery_and_the_sum_of_the_wall_time(tmp_path: Path) -> None:
    folder = write_run(tmp_path, ranks=1, steps=10, times=lambda *_: {"forward": 1.0}, plan="mb8", ends=False)
    sink = JsonLines(records_file(folder, 0))
    last = 1_000_010.0
    start = StartRecord(plan="mb8", ranks=1, device="cpu", parameters=100, steps=20, generation=2, time=last + 3.5)
    sink.write(start)
    # Half a second after its tenth step the run lost a rank; 3 s later it went on from step 7, which took a second.
    sink.write(replace(STEP, step=8, seconds={"forward": 1.0}, generation=2, time=last + 4.5))
    seconds = {"detect": 0.5, "agree": 1.0, "build": 1.5, "step": 1.0}
    sink.write(
        GenerationRecord(
            generation=2, hosts=1, ranks=1, plan="mb8", why="lost rank 1", from_step=7, lost_steps=3, seconds=seconds,
            time=last + 4.5,
        )
    )  # fmt: skip
    sink.write(replace(STEP, step=9, seconds={"forward": 1.0}, generation=2, time=last + 5.5))
    history = read_history(folder)
    assert list(history.columns.step) == [*range(1, 10)]
    assert (history.generations[0].lost_steps, history.generations[0].lost_seconds) == (3, 3.0)
    wall = wall_time(history)
    assert wall["lost"] == pytest.approx(3.0 + 0.5)
    assert wall["machines"] == pytest.approx(1.0)
    assert wall["recovery"] == pytest.approx(2.0)
    # 3 s of start, 10 s of steps, 0.5 s of an unfinished one, 3 s of recovery, 2 s of steps.
    assert sum(wall.values()) == pytest.approx(3.0 + 10.0 + 0.5 + 3.0 + 2.0)


def test_clocks_are_aligned_at_the_end_of_the_exchange(tmp_path: Path) -> None:
    steps = aligned_traces(write_run(tmp_path, ranks=3, plan="replicate3 mb1"), [0, 1, 2])
    assert {trace.begin + trace.end for trace in steps[1].values()} == {steps[1][0].begin + steps[1][0].end}


def test_a_generation_that_has_not_done_a_step_does_not_count(tmp_path: Path) -> None:
    folder = write_run(tmp_path, ends=False)
    for rank in (0, 1):
        start = StartRecord(plan="mb8", ranks=1, device="cpu", parameters=100, steps=60, generation=2, time=2e6)
        JsonLines(records_file(folder, rank)).write(start)
    history = read_history(folder)
    assert history.start.plan == "replicate2 mb4"
    assert [rank.steps for rank in history.ranks] == [55, 55]


def test_a_continued_run_counts_the_same_steps_on_all_ranks(tmp_path: Path) -> None:
    folder = write_run(tmp_path, steps=1100, ends=False)
    for rank in (0, 1):
        lines = JsonLines(records_file(folder, rank))
        sink = lines if rank == 0 else Intervals(lines, clock=lambda: 0.0)
        sink.write(StartRecord(plan="replicate2 mb4", ranks=2, device="cpu", parameters=100, steps=2000, generation=2))
        for step in range(1101, 1141):
            sink.write(replace(STEP, step=step, seconds={"forward": 0.1}, generation=2))
        sink.close()
    history = read_history(folder)
    assert [rank.steps for rank in history.ranks] == [36, 36]
    assert history.mean("forward") == pytest.approx(0.1)


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path, ends=False)
    path = records_file(folder, 0)
    path.write_bytes(path.read_bytes()[:-30])
    sink = JsonLines(path)
    sink.write(replace(STEP, step=61, seconds={"forward": 0.1}))
    sink.close()
    assert list(read_history(folder).columns.step) == [*range(1, 60), 61]
    path.write_text('{"kind": "st')
    with pytest.raises(OnecurveError, match="has not done a step yet"):
        read_history(folder)


def test_steps_that_were_not_timed_are_split_like_the_others(tmp_path: Path) -> None:
    def times(_: int, step: int) -> dict[str, float]:
        timed = {"data": 0.01, "forward": 0.03, "backward": 0.06}
        return timed if step % 8 == 0 else {"data": 0.01, "step": 0.09}

    history = read_history(write_run(tmp_path, times=times))
    assert history.mean("forward") == pytest.approx(0.03)
    assert history.mean("backward") == pytest.approx(0.06)
    assert history.mean("data") == pytest.approx(0.01)
    assert history.mean("step") == 0.0


def test_the_end_of_the_command_counts_unless_it_had_nothing_to_do(tmp_path: Path) -> None:
    write_run(tmp_path, ranks=1, steps=20)
    end = replace(EndRecord({}), time=1000.0)
    append(tmp_path, end, ExitRecord(begin=900.0, time=1000.5))
    assert wall_time(read_history(tmp_path))["exit"] == 0.5
    append(tmp_path, ExitRecord(begin=2000.0, time=2001.0))  # the run had ended already
    assert wall_time(read_history(tmp_path))["exit"] == 0.5


def append(folder: Path, *records: Record) -> None:
    with records_file(folder, 0).open("a") as file:
        file.writelines(f"{to_json(record)}\n" for record in records)
