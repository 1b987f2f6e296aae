"""Checkpoints and evaluations that take too much of the time, with hand-worked numbers."""

import pytest

from diagnosed_run import rank_history, run_history, step_times
from onecurve.describe.diagnosis import Finding, Gain
from onecurve.describe.record import EvaluationRecord, EventRecord
from onecurve.diagnose.gains import saved, worth_naming
from onecurve.diagnose.pauses import checkpoints, evaluations
from onecurve.diagnose.settings import threads

COMPUTING = {"forward": 0.08}


def evaluation(made: int, spent: float, steps: int = 100) -> Finding | None:
    records = [EvaluationRecord(step=1, loss=1.0, metrics={}, samples=8, seconds=1.0)] * made
    history = run_history(rank_history(0, COMPUTING), steps=steps, evaluations=records)
    return evaluations(history, step_times(COMPUTING, pauses={"evaluation": spent}))


def test_evaluations_may_take_a_twentieth_of_the_time() -> None:
    """One in ten steps takes 0.2 s; at one in 50 it is 0.004 s per step of 0.08 s."""
    finding = evaluation(made=10, spent=0.02)
    assert finding is not None
    assert finding.job == {"evaluate_every": 50}
    assert "evaluations take 20% of the time: one every 10 steps, 200.0 ms each" in finding.limit
    assert finding.change.startswith("every=50 in")
    assert finding.gain.expected == pytest.approx(1 - 0.084 / 0.1)
    assert evaluation(made=10, spent=0.004) is None
    assert evaluation(made=10, spent=0.0045) is not None
    assert evaluation(made=0, spent=0.02) is None
    every_step = evaluation(made=100, spent=0.02)
    assert every_step is not None
    assert "one every step, 20.0 ms each" in every_step.limit
    assert every_step.job == {"evaluate_every": 5}


def test_checkpoints_may_take_a_hundredth_of_the_time() -> None:
    events = [EventRecord("saved", "step")] * 10 + [EventRecord("warning", "other")]
    history = run_history(rank_history(0, COMPUTING), steps=100, events=events)
    finding = checkpoints(history, step_times(COMPUTING, pauses={"checkpoint": 0.02}))
    assert finding is not None
    assert finding.job == {"save_every": 500}  # 0.2 s each, 0.0008 s per step: one in 250
    assert "checkpoints take 20% of the time: one every 10 steps; each stops the training for 200.0 ms" in finding.limit
    # What writes them uses 0.05 s of the cores per step, four fifths of it while the training does not stop.
    writing = run_history(rank_history(0, COMPUTING, saving_cpu_seconds=0.5), steps=100, events=events)
    finding = checkpoints(writing, step_times(COMPUTING, pauses={"checkpoint": 0.02}))
    assert finding is not None
    assert "checkpoints take 60% of the time" in finding.limit
    assert "writing it takes 500.0 ms of CPU time" in finding.limit
    on_device = run_history(rank_history(0, COMPUTING, saving_cpu_seconds=0.5), steps=100, events=events, device="cuda")
    finding = checkpoints(on_device, step_times(COMPUTING, pauses={"checkpoint": 0.02}))
    assert finding is not None
    assert "checkpoints take 20% of the time" in finding.limit


def found(expected: float, low: float) -> Finding:
    return Finding(cause="data", limit="", change="", gain=Gain(low, expected, expected), job={})


def test_gains_of_a_twentieth_are_worth_naming() -> None:
    gains = [found(0.05, 0.02), found(0.3, 0.1), found(0.049, 0.04), found(0.2, 0.019), None]
    assert [finding.gain.expected for finding in worth_naming(gains)] == [0.3, 0.05]


def test_what_is_saved_has_a_spread() -> None:
    gain = saved(0.1, 0.06)
    assert (gain.low, gain.expected, gain.high) == (pytest.approx(0.32), pytest.approx(0.4), pytest.approx(0.48))
    assert saved(0.1, 0.01).high == 0.99
    assert saved(0.1, 0.2).low == 0.0
    assert saved(0.0, 0.0).expected == 0.0


def test_more_threads_than_cores() -> None:
    """Three threads on two cores: a third of the computing is saved, or what exceeds the prediction."""
    history, times = (
        run_history(rank_history(0, COMPUTING)),
        step_times({"forward": 0.04, "backward": 0.05, "data": 0.01}),
    )
    for count, compute, expected in ((3, None, 0.03), (3, 0.03, 0.06), (3, 0.2, 0.0)):
        object.__setattr__(history.start, "threads", count)
        finding = threads(history, times, compute)
        assert finding is not None
        assert finding.job == {"threads": 2}
        assert finding.gain.expected == pytest.approx(expected / 0.1)
    object.__setattr__(history.start, "threads", 2)
    assert threads(history, times, None) is None
