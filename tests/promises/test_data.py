"""Data in files: one order for any number of ranks and loader processes, and the curve of one device."""

import json
import shutil
import sys
from functools import partial
from pathlib import Path

import pytest

import onecurve as oc
from harness import EXAMPLES, JOBS, onecurve, steps
from onecurve.data.loader import Reader
from onecurve.data.training_data import TrainingData
from onecurve.describe.plan import Plan
from onecurve.runs.records import read_records
from sample_files import WRITERS, write_indexed

sys.path.insert(0, str(JOBS))
from files import SOURCES, open_source

KINDS = [*SOURCES, "mix", "filtered", "prepared", "packed"]
STEPS, BATCH = 5, 12
PLANS = ["mb12", "mb4×3", "replicate2 mb3×2", "shard3 mb4", "replicate4 mb3", "replicate2 mb(4,2)×2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of every format, and their indices."""
    return write_indexed(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_world_reads_the_same_samples_in_the_same_steps(kind: str, folder: Path) -> None:
    source = open_source(kind, str(folder))
    data = TrainingData(Reader(source, 0), source.order(0), STEPS)
    ledgers = [ledger(data, Plan.parse(plan), workers=0) for plan in PLANS]
    assert all(found == ledgers[0] for found in ledgers)
    assert ledger(data, Plan.parse("replicate2 mb6"), workers=2) == ledgers[0]
    assert ledger(data, Plan.parse("mb12"), workers=4) == ledgers[0]


def ledger(data: TrainingData, plan: Plan, workers: int) -> list[list[float]]:
    """The samples of each step, over all ranks."""
    steps: list[list[float]] = [[] for _ in range(STEPS)]
    for rank in range(plan.mesh.data):
        for batch in data.batches(plan, rank, workers):
            steps[batch.step - 1] += [number for micro in batch.rounds for number in micro.target.flatten().tolist()]
    return [sorted(step) for step in steps]


@pytest.mark.parametrize(
    "kind",
    [*(pytest.param(kind, marks=pytest.mark.slow) for kind in [*SOURCES, "prepared", "filtered"]), "mix", "packed"],
)
def test_check_passes_on_files(kind: str, folder: Path) -> None:
    arguments = [f"kind={kind}", f"folder={folder}"]
    result = oc.check(JOBS / "files.py", arguments, plans=["mb4×3", "replicate2 mb3×2", "shard2 mb6"], quiet=True)
    assert [verdict for verdict in result.verdicts if not verdict.holds] == []


def test_the_records_count_skipped_samples(folder: Path, tmp_path: Path) -> None:
    words = ["kind=filtered", f"folder={folder}", "--plan", "replicate2 mb3×2", "--out", "out"]
    ended = onecurve("run", str(JOBS / "files.py"), *words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    ranks = [steps(tmp_path / "out", rank) for rank in range(2)]
    for records in zip(*ranks, strict=True):
        assert sum(record.skipped_samples for record in records) == 12 - records[0].count
    assert sum(record.skipped_samples for records in ranks for record in records) > 12


def test_the_test_data_is_evaluated_once_at_the_end(folder: Path, tmp_path: Path) -> None:
    words = ["kind=tar", "steps=200", f"folder={folder}", "--ranks", "2", "--no-check", "--json", "--out", "out"]
    ended = onecurve("run", str(JOBS / "files.py"), *words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["evaluation"]["loss"] < 0.01
    assert summary["test"]["loss"] == pytest.approx(100, rel=0.05)
    tests = [record for record in read_records(tmp_path / "out") if getattr(record, "kind", "") == "test"]
    assert [(record.step, record.samples) for record in tests] == [(200, 20)]
    assert steps(tmp_path / "out")[-1].loader_processes >= 1


def test_a_run_names_a_file_that_is_missing_before_it_trains(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "files")
    (tmp_path / "files" / "tar" / "1.tar").unlink()
    ended = onecurve(
        "run", str(JOBS / "files.py"), "kind=tar", f"folder={tmp_path}/files", "--ranks", "2", cwd=tmp_path
    )
    assert ended.returncode == 1
    missing = "files/tar/1.tar: it is in the index, but it is not there"
    assert missing in ended.stderr
    for verb in (oc.plan, partial(oc.check, plans=["mb12"])):
        with pytest.raises(oc.OnecurveError, match=missing):
            verb(JOBS / "files.py", ["kind=tar", f"folder={tmp_path}/files"])


def test_the_example_learns_from_parquet_files(tmp_path: Path) -> None:
    ended = onecurve("run", str(EXAMPLES / "tabular.py"), "--ranks", "2", "--no-check", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert steps(tmp_path / "runs" / "tabular")[-1].loss < 0.004
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["flats", "tabular"]


def test_the_command_indexes_folders_and_globs(tmp_path: Path) -> None:
    WRITERS["jsonl"](tmp_path / "data")
    ended = onecurve("index", "data", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "data/_onecurve.index: 20 samples of JSON lines in 3 files, all new or changed\n"
    ended = onecurve("index", "data", "--json", cwd=tmp_path)
    assert '"scanned":0' in ended.stdout.replace(" ", "")
    ended = onecurve("index", "data/*.nothing", cwd=tmp_path)
    assert ended.returncode == 1
    assert "data: there is no file '*.nothing' in it" in ended.stderr
