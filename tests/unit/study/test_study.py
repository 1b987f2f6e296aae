"""A study counts every trial once, whichever processes work on it, and gives up those that others are better than."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import onecurve as oc
from onecurve.study.search_space import Choices, Range, SearchSpace
from onecurve.study.study import Study, TakenTrial

pytest.importorskip("optuna")
SPACE = SearchSpace({"x": Range(0.0, 10.0, False)}, ("steps=60",))


def study(folder: Path, space: SearchSpace = SPACE, **changes) -> Study:
    return Study(folder, space, **({"maximize": False, "steps": 60} | changes))


def finish(trial: TakenTrial) -> None:
    trial.finish((float(trial.texts["x"]) - 3) ** 2, 60, 1.0)


def test_the_search_finds_a_minimum(tmp_path: Path) -> None:
    searched = study(tmp_path)
    while (trial := searched.take(30)) is not None:
        finish(trial)
    trials = searched.trials()
    assert len(trials) == 30
    assert float(trials[0].arguments["x"]) == pytest.approx(3, abs=0.5)
    assert [trial.value for trial in trials] == sorted(trial.value for trial in trials if trial.value is not None)


def test_a_trial_that_was_left_goes_on_and_is_counted_once(tmp_path: Path) -> None:
    first = study(tmp_path).take(2)
    assert first is not None
    assert not first.report(5, 1.0)
    first.leave()
    again = study(tmp_path)
    left = again.take(2)
    assert left is not None
    assert (left.number, left.texts) == (first.number, first.texts)
    assert not left.report(5, 9.0)  # the step was reported before
    finish(left)
    second = again.take(2)
    assert second is not None
    assert again.take(2) is None  # one is finished, one is being run
    finish(second)
    assert [trial.curve for trial in again.trials() if trial.number == first.number] == [((5, 1.0),)]


WORK = """
import os, signal, sys
from pathlib import Path
from onecurve.study.search_space import Range, SearchSpace
from onecurve.study.study import Study

space = SearchSpace({"x": Range(0.0, 10.0, False)}, ("steps=60",))
study = Study(Path(sys.argv[1]), space, maximize=False, steps=60)
while (trial := study.take(12)) is not None:
    if sys.argv[2:] == ["killed"]:
        os.kill(os.getpid(), signal.SIGKILL)
    trial.finish(float(trial.texts["x"]), 60, 1.0)
"""


def test_processes_share_a_study_and_one_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORK, str(tmp_path)]
    killed = subprocess.run([*command, "killed"], check=False)
    assert killed.returncode == -signal.SIGKILL
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]
    trials = study(tmp_path).trials()
    assert len(trials) == 12
    assert {trial.outcome for trial in trials} == {"finished"}
    assert len({trial.arguments["x"] for trial in trials}) == 12


def test_bad_trials_are_given_up_at_a_sixth_and_at_half(tmp_path: Path) -> None:
    searched = study(tmp_path)
    outcomes = []
    for loss in (1.0, 2.0, 3.0, 0.5, 4.0, 0.4):
        trial = searched.take(6)
        assert trial is not None
        given_up = next((step for step in range(3, 61, 3) if trial.report(step, loss)), None)
        outcomes.append(given_up)
        if given_up is None:
            trial.finish(loss, 60, 1.0)
        else:
            trial.give_up(given_up, 1.0)
    assert outcomes == [None, 12, 12, None, 12, None]
    assert [trial.value for trial in searched.trials()][:3] == [0.4, 0.5, 1.0]


def test_a_loss_that_is_not_finite_is_given_up_at_once(tmp_path: Path) -> None:
    trial = study(tmp_path).take(1)
    assert trial is not None
    assert trial.report(1, float("nan"))


def test_choices_are_tried_once_and_then_there_is_nothing_left(tmp_path: Path) -> None:
    searched = study(tmp_path, SearchSpace({"x": Choices(("1", "2", "3"))}, ()))
    while (trial := searched.take(20)) is not None:
        finish(trial)
    assert sorted(trial.arguments["x"] for trial in searched.trials()) == ["1", "2", "3"]


def test_another_search_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    study(tmp_path)
    with pytest.raises(oc.OnecurveError, match=r"begun with other arguments \(fixed, steps\)"):
        study(tmp_path, SearchSpace(SPACE.searched, ("steps=90",)), steps=90)
