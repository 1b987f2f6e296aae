"""What may be removed from a run's folder, and what is read back from it."""

from dataclasses import replace
from pathlib import Path

import pytest

from onecurve.checkpoint.store import name_of
from onecurve.describe.convert import to_document, to_json, to_plain
from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import EvaluationRecord
from onecurve.describe.summary import BestEvaluation, RunSummary
from onecurve.runs.folder import (
    CHECKPOINTS,
    ORIGIN,
    RECORDS,
    SUMMARY,
    WEIGHTS,
    RunOrigin,
    clear_previous_run,
    read_origin,
    read_summary,
    refuse_foreign_folder,
)

RUN_SUMMARY = RunSummary(
    out="runs/a",
    plan="mb8 fp32",
    ranks=1,
    steps=10,
    steps_planned=10,
    ended="finished",
    loss=0.25,
    evaluation=EvaluationRecord(10, 0.5, {"accuracy": 0.75}, 64, 1.5),
    best=BestEvaluation("loss", 0.5, 10),
    best_weights=None,
    seconds=12.5,
    samples_per_second=100.0,
)
RUN_ORIGIN = RunOrigin(script="train.py", arguments=("lr=0.1",), checkpoints="s3://bucket/run")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def document(noun: object, **changes: object) -> str:
    return to_json({**to_document(noun), **changes})


def test_only_files_of_a_run_are_removed(tmp_path: Path) -> None:
    (tmp_path / RECORDS).mkdir()
    (tmp_path / RECORDS / "rank-0.jsonl").touch()
    (tmp_path / CHECKPOINTS / "step-1").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    refuse_foreign_folder(tmp_path)
    clear_previous_run(tmp_path, fresh=False)
    assert names_in(tmp_path) == [CHECKPOINTS, "notes.txt"]


def test_a_finished_run_is_replaced_only_on_request(tmp_path: Path) -> None:
    checkpoint = tmp_path / CHECKPOINTS / name_of(1, "0123456789abcdef")
    checkpoint.mkdir(parents=True)
    (tmp_path / WEIGHTS).touch()
    with pytest.raises(OnecurveError, match="already holds a run; add --fresh"):
        clear_previous_run(tmp_path, fresh=False)
    assert (tmp_path / WEIGHTS).exists()
    assert checkpoint.exists()
    clear_previous_run(tmp_path, fresh=True)
    assert not (tmp_path / WEIGHTS).exists()
    assert not checkpoint.exists()


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    (tmp_path / RECORDS).mkdir()  # a name that other programs use too
    with pytest.raises(OnecurveError, match=r"not a run's folder; give another --out"):
        refuse_foreign_folder(tmp_path)
    with pytest.raises(OnecurveError, match=r"thesis.tex: is a file; give another --out"):
        refuse_foreign_folder(tmp_path / "thesis.tex")


@pytest.mark.parametrize("mark", [f"{RECORDS}/rank-0.jsonl", ORIGIN, f"{CHECKPOINTS}/step-00000001"])
def test_one_file_of_a_run_makes_a_folder_a_runs_folder(tmp_path: Path, mark: str) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / mark).parent.mkdir(exist_ok=True)
    (tmp_path / mark).touch()
    refuse_foreign_folder(tmp_path)


def test_a_summary_is_read_back(tmp_path: Path) -> None:
    (tmp_path / SUMMARY).write_text(document(RUN_SUMMARY))
    assert read_summary(tmp_path) == RUN_SUMMARY


def version_1(**changes: object) -> str:
    """A summary as version 1 wrote it: steps counted from 0, and nothing about how the run ended."""
    plain = to_plain(RUN_SUMMARY) | {"version": 1}
    del plain["ended"], plain["best_weights"]
    plain["best"]["step"] = plain["evaluation"]["step"] = 9
    return to_json(plain | changes)


def test_a_summary_of_version_1_is_read_with_steps_counted_from_1(tmp_path: Path) -> None:
    (tmp_path / SUMMARY).write_text(version_1())
    assert read_summary(tmp_path) == RUN_SUMMARY
    (tmp_path / SUMMARY).write_text(version_1(best=None, evaluation=None))
    assert read_summary(tmp_path) == replace(RUN_SUMMARY, best=None, evaluation=None)
    (tmp_path / SUMMARY).write_text(version_1(steps=5))  # it does not say why it ended
    assert read_summary(tmp_path) is None


@pytest.mark.parametrize("content", [None, "", "{", "[1]", document(RUN_SUMMARY, version=99), document(RUN_ORIGIN)])
def test_a_missing_damaged_or_newer_summary_is_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / SUMMARY).write_text(content)
    assert read_summary(tmp_path) is None


def test_the_origin_is_read_back_or_none_if_it_is_missing(tmp_path: Path) -> None:
    assert read_origin(tmp_path) is None
    assert read_origin(tmp_path / "no such folder") is None
    (tmp_path / ORIGIN).write_text(document(RUN_ORIGIN))
    assert read_origin(tmp_path) == RUN_ORIGIN


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        (document(RUN_ORIGIN, version=2), "version 2, but this onecurve reads versions up to 1"),
        (document(RUN_ORIGIN, scripts="a.py"), "unknown key 'scripts'"),
    ],
)
def test_a_damaged_or_newer_origin_is_refused_with_the_path(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / ORIGIN).write_text(content)
    with pytest.raises(OnecurveError, match=rf"{ORIGIN}: .*{message}"):
        read_origin(tmp_path)
