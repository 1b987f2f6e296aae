"""Row servers of `onecurve serve`, with a real etcd: whatever happens to them, a run computes the same."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import BENCHMARKS, onecurve, python

JOB = BENCHMARKS / "params_job.py"


def faults(*words: str) -> dict:
    ended = python(str(BENCHMARKS / "params_faults.py"), *words, "--json", timeout=280)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_run_computes_the_same_when_a_server_is_killed() -> None:
    found = faults("kill", "--count", "1")
    assert found["identical"] == found["runs"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "scenario", ["stop", "partition", "etcd", "etcd_alone", "join", "leave", "rank", "ranks", "all"]
)
def test_a_run_computes_the_same_after_more_faults(scenario: str) -> None:
    found = faults(scenario, "--count", "2")
    assert found["identical"] == found["runs"] == 2


@pytest.mark.slow
def test_lost_rows_end_the_run_which_then_continues_from_its_checkpoint(tmp_path: Path) -> None:
    """Both servers are killed at once."""
    words = [sys.executable, "-m", "onecurve", "run", str(JOB), "params=local://2", "steps=160", "every=20"]
    words += ["--plan", "replicate2 mb32 fp64", "--no-check", "--out", "out"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("saved  step" in line for line in process.stdout)
        for pid in servers_below(process.pid):
            os.kill(pid, signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "are lost: all servers that had them are gone; start the run again: it continues from" in errors
    again = onecurve("run", str(JOB), "params=local://3", "steps=160", "every=20", *words[-5:], cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "resumed  from step" in again.stdout


def servers_below(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid), "-f", "row_process"], capture_output=True, text=True, check=True)
    return [int(word) for word in found.stdout.split()]


def test_servers_on_addresses_of_other_machines_need_certificates(tmp_path: Path) -> None:
    ended = onecurve("serve", "etcd://127.0.0.1:1/name", "--listen", "192.0.2.1", cwd=tmp_path)
    assert ended.returncode == 1
    assert "192.0.2.1 can be reached from other machines: give --tls FOLDER" in ended.stderr
