"""What is found in the records of runs that are slow for one reason."""

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from onecurve.describe.diagnosis import Diagnosis, StepTimes
from onecurve.describe.plan import Plan
from onecurve.describe.record import CodeLine, EventRecord, LinesRecord
from onecurve.diagnose.diagnosis import diagnose
from onecurve.diagnose.efficiency import identity
from onecurve.diagnose.history_reader import read_history
from onecurve.report.sink import JsonLines
from onecurve.report.why import verdict_lines
from onecurve.runs.folder import records_file
from synthetic_run import steady, write_run


def diagnosis_of(folder: Path) -> Diagnosis:
    history = read_history(folder)
    return diagnose(history, Plan.parse(history.start.plan), None, False, "")


def causes(diagnosis: Diagnosis) -> list[str]:
    return [finding.cause for finding in diagnosis.findings]


def test_nothing_is_found_about_a_good_run(tmp_path: Path) -> None:
    found = diagnosis_of(write_run(tmp_path))
    assert causes(found) == []
    assert verdict_lines(found)[0] == "limit   none found: no known change would save much time"
    assert len(verdict_lines(found)) == 3


def test_a_loader_that_is_too_slow(tmp_path: Path) -> None:
    times = {"data": 0.06, "forward": 0.01, "backward": 0.02, "replicate": 0.001}
    write_run(tmp_path, times=lambda *_: times, loading_seconds=0.09, loading_cpu_seconds=0.001)
    (finding,) = diagnosis_of(tmp_path).findings
    assert finding.cause == "data"
    assert finding.job == {"workers": 4}  # 0.09 s of loading in 0.031 s, with room
    assert finding.gain.expected == pytest.approx(1 - 0.031 / 0.091, abs=0.01)


def test_waiting_for_data_that_is_there_is_not_mended_by_more_processes(tmp_path: Path) -> None:
    times = {"data": 0.02, "forward": 0.01, "backward": 0.02, "replicate": 0.001}
    write_run(tmp_path, times=lambda *_: times, loading_seconds=0.005)
    assert "data" not in causes(diagnosis_of(tmp_path))


def test_storage_that_is_too_slow(tmp_path: Path) -> None:
    times = {"data": 0.06, "forward": 0.01, "backward": 0.02, "replicate": 0.001}
    write_run(tmp_path, times=lambda *_: times, loading_seconds=0.09, storage_seconds=0.08)
    (finding,) = diagnosis_of(tmp_path).findings
    assert finding.cause == "storage"
    assert "oc.Cache" in finding.change


def test_a_slow_rank_is_named_with_its_host(tmp_path: Path) -> None:
    def times(rank: int, _: int) -> Mapping[str, float]:
        slow = rank == 9
        return {"forward": 0.08 if slow else 0.03, "backward": 0.03, "replicate": 0.002 if slow else 0.052}

    write_run(tmp_path, ranks=16, times=times, plan="replicate16 mb1")
    (finding,) = diagnosis_of(tmp_path).findings
    assert finding.cause == "slow_rank"
    assert "rank 9 on host h1" in finding.limit
    assert finding.gain.expected == pytest.approx(0.05 / 0.112, abs=0.01)


def uneven(rank: int, step: int) -> Mapping[str, float]:
    own = [random.Random(1_000_003 * each + step).choice((0.02, 0.1)) for each in range(4)]
    return {"forward": own[rank], "replicate": max(own) - own[rank] + 0.002}


def test_uneven_samples_are_told_from_interrupted_ranks(tmp_path: Path) -> None:
    worked = lambda rank, step: uneven(rank, step)["forward"]  # noqa: E731
    write_run(tmp_path / "uneven", ranks=4, times=uneven, plan="replicate4 mb2", cpu_seconds=worked)
    found = diagnosis_of(tmp_path / "uneven")
    assert causes(found)[0] == "uneven_samples"
    assert found.times.uneven == pytest.approx(0.035, rel=0.3)
    write_run(tmp_path / "busy", ranks=4, times=uneven, plan="replicate4 mb2", cpu_seconds=0.02)
    assert causes(diagnosis_of(tmp_path / "busy"))[0] == "busy_hosts"


def test_a_single_rank_without_a_core_is_noticed(tmp_path: Path) -> None:
    for name, cpu_seconds in (("busy", 0.05), ("alone", 0.09)):
        write_run(tmp_path / name, ranks=1, plan="mb8", cpu_seconds=cpu_seconds)
    (finding,) = diagnosis_of(tmp_path / "busy").findings
    assert finding.cause == "busy_hosts"
    assert "the rank has no core for" in finding.limit
    assert not diagnosis_of(tmp_path / "alone").findings


def test_too_many_checkpoints_and_evaluations(tmp_path: Path) -> None:
    times = {"forward": 0.03, "backward": 0.06, "replicate": 0.001, "checkpoint": 0.03}
    write_run(tmp_path, times=lambda *_: times, saving_cpu_seconds=0.01)
    sink = JsonLines(records_file(tmp_path, 0))
    for _ in range(60):
        sink.write(EventRecord("saved", "step"))
    (finding,) = diagnosis_of(tmp_path).findings
    assert finding.cause == "checkpoint"
    assert finding.job["save_every"] == 50
    # The training stops for 0.03 s, and three quarters of the writing is beside it; every 50 steps that is little.
    assert finding.gain.expected == pytest.approx((0.03 + 0.75 * 0.01) / 0.121, rel=0.03)


def test_batch_norm_over_a_slow_link(tmp_path: Path) -> None:
    times = {"forward": 0.02, "backward": 0.02, "batch_norm": 0.05, "replicate": 0.001}
    (finding,) = diagnosis_of(write_run(tmp_path, times=lambda *_: times)).findings
    assert finding.cause == "batch_norm"
    assert finding.job == {"batch_norm": "local"}


def test_a_line_that_reads_values(tmp_path: Path) -> None:
    write_run(tmp_path)
    sink = JsonLines(records_file(tmp_path, 0))
    read = CodeLine("train.py:41", "loss", "total += x.item()", 60)
    sink.write(LinesRecord(100, (CodeLine("train.py:12", "forward", "x = self.fc(x)", 40), read)))
    (finding,) = diagnosis_of(tmp_path).findings
    assert finding.cause == "host_reads"
    assert "loss in train.py:41 reads values of tensors with .item()" in finding.limit


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_causes_of_a_step_add_up(tmp_path: Path, ranks: int) -> None:
    write_run(tmp_path, ranks=ranks, times=steady, plan=f"replicate{ranks} mb1" if ranks > 1 else "mb8")
    history = read_history(tmp_path)
    found = diagnosis_of(tmp_path)
    measured = sum(sum(rank.seconds.values()) / rank.steps for rank in history.ranks) / ranks
    assert found.times.total == pytest.approx(measured, rel=1e-9)
    assert all(value >= 0 for value in found.times.by_cause.values())


def test_the_factors_of_the_efficiency_multiply_to_it() -> None:
    own, communication = {"data": 0.1, "forward": 0.2, "backward": 0.2, "update": 0.05}, {"replicate": 0.45}
    times = StepTimes(
        own=own, communication=communication, bubble=0.0, slowest=0.0, uneven=0.0, interrupted=0.0, pauses={}
    )
    found = identity(times, {"launch": 5.0, "steps": 10.0}, {}, step_flops=1e9, rate=1e10, devices=2, steps=10)
    factors = {factor.name: factor.measured for factor in found.factors}
    assert factors["no communication"] == pytest.approx(0.45 / 0.9)
    assert factors["rate of computing over the device's peak"] == pytest.approx(1e9 / 2e10 / 0.4)
    assert found.seconds == pytest.approx(found.work / (found.rate * found.devices * found.efficiency))


def test_a_rank_that_waits_for_data_is_not_a_slow_one(tmp_path: Path) -> None:
    def times(rank: int, _: int) -> Mapping[str, float]:
        return {"data": 0.055 if rank == 0 else 0.001, "forward": 0.015, "replicate": 0.001 if rank == 0 else 0.055}

    write_run(tmp_path, times=times, loading_seconds=0.07, loading_cpu_seconds=0.001)
    (finding,) = diagnosis_of(tmp_path).findings
    assert finding.cause == "data"
    assert finding.gain.expected == pytest.approx(0.055 / 0.071, abs=0.02)
