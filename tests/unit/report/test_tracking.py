"""Trackers receive what the records say, and cannot end a run."""

import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import onecurve as oc
from onecurve.describe.record import EndRecord, EvaluationRecord, StartRecord
from onecurve.report import tracking
from onecurve.report.mlflow_tracker import MLflow
from onecurve.report.prometheus import Prometheus
from onecurve.report.tracking import Tracking
from onecurve.report.wandb_tracker import WeightsAndBiases
from synthetic_run import STEP

START = StartRecord("mb8 fp32", 1, "cpu", 100, 1, global_batch=8, peak_seconds=0.1)


class Kept:
    def __init__(self, fails_in: str = "") -> None:
        self.calls: list[tuple[str, Any]] = []
        self._fails_in = fails_in

    def begin(self, folder: str, facts: Mapping[str, str | float]) -> None:
        self._add("begin", (folder, facts["plan"], facts["script"]))

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._add("log", (step, dict(values)))

    def end(self, how: str) -> None:
        self._add("end", how)

    def _add(self, name: str, what: object) -> None:
        if name == self._fails_in:
            raise RuntimeError("no connection")
        self.calls.append((name, what))


def told(*trackers: oc.Tracker) -> list[str]:
    warnings: list[str] = []
    sink = Tracking(trackers, Path("runs/a"), {"script": "train.py"}, 8, warnings.append)

    for record in (
        START,
        replace(STEP, seconds={"forward": 0.4, "checkpoint": 5.0}),
        EvaluationRecord(step=1, loss=2.0, metrics={"accuracy": 0.5}, samples=4, seconds=1.0),
        EndRecord({}),
    ):
        sink.write(record)
    sink.close()
    return warnings


def test_a_tracker_gets_the_beginning_the_values_and_the_end() -> None:
    kept = Kept()
    assert told(kept) == []
    names = [name for name, _ in kept.calls]
    assert names == ["begin", "log", "log", "end"]
    assert kept.calls[0][1] == ("runs/a", "mb8 fp32", "train.py")
    step, values = kept.calls[1][1]
    assert step == 1
    assert values["train/loss"] == STEP.loss
    assert values["train/utilization"] == pytest.approx(0.25)
    assert kept.calls[2][1] == (1, {"evaluation/loss": 2.0, "evaluation/accuracy": 0.5})
    assert kept.calls[3][1] == "finished"


@pytest.mark.parametrize("method", ["begin", "log", "end"])
def test_a_tracker_that_fails_is_a_warning_and_the_others_go_on(method: str) -> None:
    broken, kept = Kept(method), Kept()
    (warning,) = told(broken, kept)
    assert warning == "Kept failed and gets no more values: RuntimeError: no connection"
    assert len(kept.calls) == 4


def test_slow_trackers_are_told_of_fewer_steps(monkeypatch) -> None:
    monkeypatch.setattr(tracking, "_MAX_WAITING", 2)
    go_on = threading.Event()

    class Slow(Kept):
        def begin(self, folder: str, facts: Mapping[str, str | float]) -> None:
            go_on.wait(10)
            super().begin(folder, facts)

    slow, warnings = Slow(), list[str]()
    sink = Tracking([slow], Path("runs/a"), {"script": "train.py"}, 8, warnings.append)
    for record in (START, *[STEP] * 10, EndRecord({})):
        sink.write(record)
    go_on.set()
    sink.close()
    assert warnings == ["the trackers are slower than the training; some steps are not sent to them"]
    assert 1 <= [name for name, _ in slow.calls].count("log") < 10
    assert slow.calls[-1] == ("end", "finished")


def test_prometheus_reads_the_newest_values() -> None:
    server = Prometheus(0)
    server.begin('runs/"a"', {"plan": "mb8 fp32"})
    server.log({"train/loss": 2.5}, 7)
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        text = answer.read().decode()
    assert r'onecurve_train_loss{run="runs/\"a\"",plan="mb8 fp32"} 2.5' in text
    assert "onecurve_step" in text
    server.end("finished")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=2)
    with pytest.raises(oc.OnecurveError, match="give another port"):
        Prometheus(Prometheus(0).port)


def test_names_that_there_are_not_are_refused(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def job(): ...")
    with pytest.raises(oc.OnecurveError, match=r"--track tensorbord: no such tracker .did you mean 'tensorboard'"):
        oc.run(tmp_path / "train.py", track="tensorbord")


def test_mlflow_has_the_values_and_a_continued_run_goes_on_in_the_same_one(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from mlflow import MlflowClient

    for step in (1, 2):
        tracker = MLflow()
        tracker.begin(str(tmp_path), {"plan": "mb8 fp32"})
        tracker.log({"train/loss": 3.0 - step, "train/gradient_norm": float("nan")}, step)
        tracker.end("interrupted" if step == 1 else "finished")
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("onecurve").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params) == (tmp_path.name, "FINISHED", {"plan": "mb8 fp32"})
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in losses] == [(1, 2.0), (2, 1.0)]


def test_weights_and_biases_writes_into_the_folder_of_the_run(tmp_path: Path, monkeypatch, capfd) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    tracker = WeightsAndBiases()
    tracker.begin(str(tmp_path), {"plan": "mb8 fp32"})
    tracker.log({"train/loss": 2.0}, 1)
    tracker.end("finished")
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    assert folder.name.endswith((tmp_path / "wandb-run").read_text())
    (file,) = folder.glob("*.wandb")
    assert b"train/loss" in file.read_bytes()
    assert capfd.readouterr() == ("", "")
