"""The process of a trial, and the claim of the process that works on a trial."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from onecurve.describe.convert import to_json

pytest.importorskip("optuna")
from onecurve.study.claims import Claims
from onecurve.study.search_space import Choices, Range, SearchSpace
from onecurve.study.study import Study
from onecurve.study.trial_process import Slot, TrialProcess


def test_a_trial_runs_on_its_part_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shown.py").write_text(
        "import os, sys; print(*sys.argv[1:], os.environ['DEVICE']); print('the last line'); sys.exit(3)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = TrialProcess("shown", Slot((2, 5), {"DEVICE": "one"}), ["lr=1"], tmp_path / "log")
    assert process.wait() == process.exit_code == 3
    assert (tmp_path / "log").read_text().splitlines()[0] == f"{os.getpid()} 2,5 lr=1 one"
    assert process.message == "the last line"
    assert 0 <= process.seconds < 100
    process.stop()  # it has ended


def test_a_trial_is_stopped_and_what_it_printed_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waits.py").write_text("import time; print('x' * 400, flush=True); time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = TrialProcess("waits", Slot((0,)), [], tmp_path / "log")
    assert process.message in ("it printed nothing", "x" * 300)
    while not (tmp_path / "log").read_text():
        time.sleep(0.01)
    assert process.exit_code is None
    assert process.message == "x" * 300
    process.stop()
    assert process.wait() == -15


def test_a_claim_holds_while_its_process_lives(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    assert not claims.is_taken(1)
    claims.take(1)
    assert claims.is_taken(1)
    file = claims._file(1)
    file.write_text(to_json(replace(claims._own, begun="0")))  # another process has its number now
    assert not claims.is_taken(1)
    claims.take(1)
    claims.drop(1)
    assert not claims.is_taken(1)


def test_a_claim_of_another_host_ends_after_a_minute_of_silence(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    file = claims._file(1)
    file.write_text(to_json(replace(claims._own, host="another", process=1)))
    assert claims.is_taken(1)
    for silent, taken in ((50, True), (70, False)):
        os.utime(file, (time.time() - silent, time.time() - silent))
        assert claims.is_taken(1) == taken
    file.write_text("{")
    assert not claims.is_taken(1)


def study(folder: Path, **changes: object) -> Study:
    space = SearchSpace({"a": Range(0.0, 1.0, False), "b": Choices(("x", "y"))}, ())
    return Study(folder, space, **({"maximize": False, "steps": 60} | changes))  # type: ignore[arg-type]


def test_the_best_trial_is_first_and_those_without_a_value_are_last(tmp_path: Path) -> None:
    for maximize, expected in ((False, [0.0, 1.0, 2.0]), (True, [2.0, 1.0, 0.0])):
        made = study(tmp_path / str(maximize), maximize=maximize)
        for value in (1.0, 0.0, 2.0):
            trial = made.take(9)
            assert trial is not None
            trial.finish(value, 60, 1.5)
        for steps in (10, 20):
            trial = made.take(9)
            assert trial is not None
            trial.give_up(steps, 0.5, "others are better")
        trial = made.take(9)
        assert trial is not None
        trial.fail(5, 0.25, "no memory")
        trials = made.trials()
        assert [each.value for each in trials] == [*expected, None, None, None]
        assert [each.steps for each in trials] == [60, 60, 60, 20, 10, 5]
        assert [each.outcome for each in trials[2:]] == ["finished", "pruned", "pruned", "failed"]
        assert [(each.seconds, each.note) for each in trials[3:]] == [
            (0.5, "others are better"),
            (0.5, "others are better"),
            (0.25, "no memory"),
        ]


def test_five_finished_trials_say_which_argument_matters(tmp_path: Path) -> None:
    made = study(tmp_path)
    for number in range(5):
        assert made.importance() == {}
        trial = made.take(9)
        assert trial is not None
        trial.finish(float(trial.texts["a"]) + number / 100, 60, 1.0)
    assert sum(made.importance().values()) == pytest.approx(1.0)
    one = Study(tmp_path / "one", SearchSpace({"a": Range(0.0, 1.0, False)}, ()), maximize=False, steps=60)
    for _ in range(5):
        trial = one.take(9)
        assert trial is not None
        trial.finish(float(trial.texts["a"]), 60, 1.0)
    assert one.importance() == {}


def test_integers_and_wide_ranges_are_suggested_as_they_are_written(tmp_path: Path) -> None:
    space = SearchSpace({"n": Range(2, 3, True), "lr": Range(1e-4, 1e-1, False)}, ())
    made = Study(tmp_path, space, maximize=False, steps=60)
    found = [trial.texts for _ in range(12) if (trial := made.take(99)) is not None]
    assert {texts["n"] for texts in found} == {"2", "3"}
    rates = [float(texts["lr"]) for texts in found]
    assert 1e-4 <= min(rates) < max(rates) <= 1e-1
    assert sum(rate < 1e-2 for rate in rates) >= 3  # by its logarithm: two thirds of the range
