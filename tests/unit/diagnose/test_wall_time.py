"""The wall time of a run adds up, and a step is split by cause, with hand-worked numbers."""

from dataclasses import replace

import pytest

from diagnosed_run import START, rank_history, run_history
from onecurve.describe.mesh import Mesh
from onecurve.describe.record import EndRecord
from onecurve.diagnose.history import GenerationHistory, RunHistory
from onecurve.diagnose.step_times import step_times
from onecurve.diagnose.wall_time import wall_time


def test_a_generation_is_divided_into_start_steps_pauses_and_end() -> None:
    seconds = {"forward": 10.0, "evaluation": 3.0, "checkpoint": 1.0}
    start = replace(START, seconds={"launch": 2.0, "build": 0.5})
    generation = GenerationHistory(
        start, end=EndRecord({"checkpoint": 0.25}), exit_seconds=0.1, steps=8, seconds=seconds,
        first_step_seconds=1.5, lost_seconds=2.0,
    )  # fmt: skip
    wall = wall_time(RunHistory("run", [generation]))
    assert wall == {
        "launch": 2.0,
        "build": 0.5,
        "first_step": 1.5,
        "steps": pytest.approx(6.5),
        "evaluation": 3.0,
        "checkpoint": 1.25,
        "lost": 2.0,
        "exit": 0.1,
    }


def test_a_slow_rank_and_what_is_left_for_communication() -> None:
    """Ranks work for 0.06 and 0.08 s of 0.1 s: 0.01 s on average is waiting for the slow one, 0.02 s communication."""
    ranks = [
        rank_history(0, {"forward": 0.06, "replicate": 0.04}),
        rank_history(1, {"forward": 0.08, "replicate": 0.02}),
    ]
    times = step_times(run_history(*ranks, spread=0.01), Mesh(replicate=2))
    assert times.own == {"forward": pytest.approx(0.07)}
    assert times.slowest == pytest.approx(0.01)
    assert times.communication == {"replicate": pytest.approx(0.02)}
    assert times.uneven + times.interrupted + times.bubble == pytest.approx(0.0)
    assert times.total == pytest.approx(0.1)


def test_a_difference_within_two_standard_errors_is_chance() -> None:
    seconds = ({"forward": 0.06, "replicate": 0.04}, {"forward": 0.08, "replicate": 0.02})
    for deviation, slowest in ((0.03, 0.0), (0.01, 0.01)):  # over 16 steps: a standard error of a quarter
        ranks = [rank_history(n, each, steps=16, deviation=deviation) for n, each in enumerate(seconds)]
        assert step_times(run_history(*ranks), Mesh(replicate=2)).slowest == pytest.approx(slowest)


def test_what_moves_from_rank_to_rank_is_uneven_or_interrupted() -> None:
    ranks = [rank_history(n, {"forward": 0.06, "replicate": 0.04}) for n in range(2)]
    times = step_times(run_history(*ranks, spread=0.03, worked_spread=0.01), Mesh(replicate=2))
    assert times.uneven == pytest.approx(0.01)
    assert times.interrupted == pytest.approx(0.02)
    assert times.communication == {"replicate": pytest.approx(0.01)}


def test_stages_wait_in_the_pipeline() -> None:
    """Each stage is compared with its replicas only: a stage that works longer is no slow rank."""
    seconds = {"forward": 0.06, "pipeline": 0.03, "replicate": 0.01}
    other = {"forward": 0.08, "pipeline": 0.01, "replicate": 0.01}
    ranks = [rank_history(n, seconds if n < 2 else other) for n in range(4)]
    times = step_times(run_history(*ranks, spread=0.02), Mesh(pipeline=2, replicate=2))
    assert times.slowest == 0.0
    assert times.uneven == 0.0
    assert times.bubble == pytest.approx(0.02)
    assert times.communication == {"replicate": pytest.approx(0.01)}
    late = [rank_history(n, {"forward": 0.06 + 0.02 * (n % 2), "pipeline": 0.04 - 0.02 * (n % 2)}) for n in range(4)]
    times = step_times(run_history(*late), Mesh(pipeline=2, replicate=2))
    assert times.slowest == pytest.approx(0.01)
    assert times.bubble == pytest.approx(0.02)
