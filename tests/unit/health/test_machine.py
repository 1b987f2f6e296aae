"""What is said about a machine, and about one on which something is missing."""

import os
import resource
import shutil
import sys
from collections import namedtuple
from importlib import import_module
from pathlib import Path

import pytest

from onecurve.health import machine
from onecurve.health.folder import folder_checks
from onecurve.health.machine import extras_check, machine_checks
from onecurve.health.meeting_place import meeting_place_checks
from onecurve.health.versions import version_facts
from onecurve.report.doctor import doctor_lines

Usage = namedtuple("Usage", "total used free")


def states() -> dict[str, str]:
    return {check.name: check.state for check in machine_checks()}


def test_this_machine_can_train() -> None:
    found = states()
    assert found["torch"] == found["memory"] == found["devices"] == "ok"
    assert extras_check().state == "ok"
    assert {"onecurve", "python", "torch", "devices", "safetensors"} <= version_facts("0.1").keys()


def test_what_is_missing_is_a_problem_with_a_fix(monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**26, 0, 2**26))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    monkeypatch.setattr("torch.__version__", "2.12.1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    checks = {check.name: check for check in machine_checks()}
    for name in ("torch", "shared memory", "open files", "temporary files"):
        assert checks[name].state == "problem", checks[name]
        assert checks[name].fix
    assert checks["cores"].state == "note"
    lines = doctor_lines(list(checks.values()))
    assert lines[-1] == f"{sum(check.state == 'problem' for check in checks.values())} problems found"
    assert any("--shm-size" in line for line in lines)


def test_modules_that_each_process_compiles_again_are_noted(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "fresh.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for is_kept in (False, True):
        monkeypatch.setattr(sys, "dont_write_bytecode", not is_kept)
        assert machine._is_compiled(import_module("fresh")) == is_kept
        del sys.modules["fresh"]
    monkeypatch.setattr(machine, "_is_compiled", lambda _: False)
    assert machine._python().state == "note"


def test_a_driver_without_a_device_is_a_problem(monkeypatch) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/bin/x" if name == "nvidia-smi" else None)
    assert states()["devices"] == "problem"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ({}, float("inf")),
    ],
)
def test_a_quota_below_the_number_of_cores_is_a_problem(
    tmp_path: Path, monkeypatch, files: dict[str, str], cores: float
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert machine._core_quota(tmp_path) == cores
    monkeypatch.setattr(machine, "_core_quota", lambda: cores)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {0, 1})
    assert (machine._cores().state == "problem") == (cores < 2)


def test_a_folder_is_tried_and_left_empty(tmp_path: Path) -> None:
    (check,) = folder_checks(tmp_path / "runs")
    assert check.state == "ok", check
    assert not list((tmp_path / "runs").iterdir())
    (tmp_path / "file").touch()
    (check,) = folder_checks(tmp_path / "file")
    assert check.state == "problem"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    (check,) = folder_checks(tmp_path)
    assert check.state == "problem"


@pytest.mark.parametrize(
    ("where", "state", "text"),
    [
        ("127.0.0.1:0", "ok", "is this host"),
        ("nonsense", "problem", "is not HOST:PORT"),
        ("no-such-host.invalid:29500", "problem", "no address is known"),
        ("etcd://127.0.0.1:1", "problem", ""),
    ],
)
def test_a_meeting_place(where: str, state: str, text: str) -> None:
    (check,) = meeting_place_checks(where)
    assert check.state == state, check
    assert text in check.text
