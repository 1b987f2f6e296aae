"""How a run is doing, with hand-worked numbers."""

from dataclasses import replace

import pytest

from diagnosed_run import START, rank_history, run_history
from onecurve.describe.record import EndRecord, EvaluationRecord, EventRecord, GenerationRecord
from onecurve.diagnose.history import GenerationHistory, RunHistory
from onecurve.diagnose.run_status import state_of, status_of

NEWEST = 1010.0


def running(**fields) -> RunHistory:
    """Ten of 100 steps of 0.1 s, the last one at `NEWEST`."""
    seconds = {"data": 0.01, "forward": 0.06, "replicate": 0.03}
    history = run_history(rank_history(0, seconds, memory=5), rank_history(1, seconds, memory=7), **fields)
    for step in range(1, 11):
        history.columns.loss.append(float(step))
        history.columns.lr.append(0.5)
        history.columns.samples.append(8 * step)
    return history


def test_what_is_left_and_how_fast_it_is() -> None:
    history = running()
    object.__setattr__(history.start, "epoch_samples", 40)
    object.__setattr__(history.start, "peak_seconds", 0.02)
    status = status_of(history, now=NEWEST + 5)
    assert status.state == "running"
    assert status.seconds_left == pytest.approx(9.0)
    assert status.samples_per_second == pytest.approx(80.0)
    assert (status.epoch, status.utilization) == (2.0, pytest.approx(0.2))
    assert (status.step, status.steps, status.memory, status.age) == (10, 100, 7, 5.0)
    assert status.losses == tuple(map(float, range(1, 11)))
    rank = status.rank_status[1]
    assert (rank.waiting, rank.data, rank.own_seconds) == (pytest.approx(0.3), pytest.approx(0.1), pytest.approx(0.07))


def test_a_silent_run_is_not_in_progress() -> None:
    history = running()
    assert state_of(history, NEWEST + 59) == "running"
    assert state_of(history, NEWEST + 61) == "silent"
    assert status_of(history, NEWEST + 61).seconds_left == 0.0
    history.columns.seconds[-1] = 8.0  # ten steps of it
    assert state_of(history, NEWEST + 79) == "running"
    assert state_of(history, NEWEST + 81) == "silent"
    evaluation = EvaluationRecord(step=10, loss=0.5, metrics={"top1": 0.25}, samples=8, seconds=40.0, time=NEWEST)
    assert state_of(running(evaluations=[evaluation]), NEWEST + 119) == "running"
    assert state_of(running(evaluations=[evaluation]), NEWEST + 121) == "silent"
    assert status_of(running(evaluations=[evaluation]), NEWEST).evaluation == "step 10: loss 0.5000, top1 0.25"


def test_a_run_whose_folder_is_not_locked_is_over_after_ten_seconds() -> None:
    assert state_of(running(), NEWEST + 11, locked=False) == "stopped"
    assert state_of(running(), NEWEST + 9, locked=False) == "running"
    assert state_of(running(), NEWEST + 11, locked=True) == "running"


def test_a_run_that_has_ended() -> None:
    history = running()
    history.generations[0].end = EndRecord({})
    assert state_of(history, NEWEST) == "stopped"
    object.__setattr__(history.start, "steps", 10)
    assert state_of(history, NEWEST) == "finished"


def test_events_in_their_order_without_details() -> None:
    events = [
        EventRecord("saved", "step 5", time=1002.0),
        EventRecord("warning", "slow", time=1003.0),
        EventRecord("saved", "step 9", time=1004.0),
    ]
    history = running(events=events)
    record = GenerationRecord(
        generation=2,
        hosts=1,
        ranks=1,
        plan="mb8",
        why="lost rank 1",
        from_step=7,
        lost_steps=3,
        seconds={},
        time=1001.0,
    )
    history.generations.append(GenerationHistory(replace(START, generation=2), record, steps=1))
    status = status_of(history, NEWEST)
    assert status.events == ("lost rank 1", "warning: slow")
    assert status.checkpoint == "step 9"
    first = replace(record, generation=1)
    history.generations[-1].record = first
    assert status_of(history, NEWEST).events == ("warning: slow",)


def test_long_runs_show_means_of_their_losses() -> None:
    history = running()
    history.columns.loss.extend([float(n) for n in range(11, 241)])
    losses = status_of(history, NEWEST).losses
    assert len(losses) == 120
    assert losses[:2] == (1.5, 3.5)
    assert losses[-1] == 239.5


def test_utilization_of_a_continued_run_is_that_of_the_start_with_the_same_plan() -> None:
    history = running()
    newest = history.generations[0]
    planned = GenerationHistory(replace(START, peak_seconds=0.05), steps=5)
    other = GenerationHistory(replace(START, plan="mb8", peak_seconds=0.09), steps=5)
    history.generations[:] = [planned, other, newest]
    assert status_of(history, NEWEST).utilization == pytest.approx(0.5)
    history.generations[:] = [other, newest]
    assert status_of(history, NEWEST).utilization is None
