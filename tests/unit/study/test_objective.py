"""What trials are compared by is read from the records of their runs, as they are written."""

from dataclasses import replace
from pathlib import Path

from onecurve.describe.convert import to_json
from onecurve.describe.record import EvaluationRecord
from onecurve.runs.folder import records_file
from onecurve.study.objective import Objective, TrialProgress
from synthetic_run import STEP


def write(folder: Path, *records: object, end: str = "\n") -> None:
    file = records_file(folder, 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as opened:
        opened.write("\n".join(to_json(record) for record in records) + end)


def steps(first: int, last: int) -> list[object]:
    return [replace(STEP, step=step, loss=100.0 - step) for step in range(first, last + 1)]


def test_training_losses_are_averaged_over_a_twentieth(tmp_path: Path) -> None:
    progress = TrialProgress(tmp_path, Objective(steps=40))
    assert progress.new_values() == []
    write(tmp_path, *steps(1, 5))
    assert progress.new_values() == [(2, 98.5), (4, 96.5)]
    write(tmp_path, *steps(6, 6), end="")
    assert progress.new_values() == []  # the line is not complete
    write(tmp_path, end="\n")
    assert progress.new_values() == [(6, 94.5)]
    assert (progress.step, progress.value, progress.diverges) == (6, 94.5, False)
    write(tmp_path, replace(STEP, step=7, loss=float("nan")))
    progress.new_values()
    assert progress.diverges


def test_evaluations_count_if_there_are_enough_of_them(tmp_path: Path) -> None:
    objective = Objective(steps=40, watch="accuracy", maximize=True, evaluations=8)
    progress = TrialProgress(tmp_path, objective)
    evaluation = EvaluationRecord(step=5, loss=2.0, metrics={"accuracy": 0.5}, samples=4, seconds=1.0)
    write(tmp_path, *steps(1, 5), evaluation)
    assert progress.new_values() == [(5, 0.5)]
    assert progress.value == 0.5


def test_with_few_evaluations_the_training_loss_decides_and_the_last_evaluation_is_the_result(tmp_path: Path) -> None:
    progress = TrialProgress(tmp_path, Objective(steps=40, watch="accuracy", maximize=True, evaluations=1))
    evaluation = EvaluationRecord(step=40, loss=2.0, metrics={"accuracy": 0.75}, samples=4, seconds=1.0)
    write(tmp_path, *steps(1, 2), evaluation)
    assert progress.new_values() == [(2, -98.5)]  # the study makes values large
    assert progress.value == 0.75


def test_how_many_steps_and_evaluations_count() -> None:
    assert [Objective(steps=steps).averaged_steps for steps in (1, 40, 400, 630)] == [1, 2, 20, 32]
    followed = [Objective(steps=40, watch="loss", evaluations=count).follows_evaluations for count in (5, 6)]
    assert followed == [False, True]
    assert Objective(steps=40, watch="loss", evaluations=5).followed == "training loss"
    assert Objective(steps=40, watch="loss", evaluations=6).followed == "evaluation loss"
