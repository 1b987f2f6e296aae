"""Runs that srun, sbatch and mpirun start. Slurm and Open MPI are real; the nodes are on this machine."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import BENCHMARKS, SMALL, onecurve, python

PLAN = ("--plan", "replicate2 mb4")


@pytest.mark.skipif(shutil.which("slurmctld") is None or os.geteuid() != 0, reason="needs root and Debian's slurm-wlm")
def test_slurm_runs_stops_and_continues_a_job() -> None:
    done = python(str(BENCHMARKS / "slurm.py"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "srun": True,
        "submitted": True,
        "status": 75,
        "requeued": True,
        "exact": True,
        "log_kept": True,
    }, done.stderr


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Debian's openmpi-bin")
def test_processes_of_mpirun_on_one_host_are_ranks(tmp_path: Path) -> None:
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable, "-m", "onecurve"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ["run", SMALL, *PLAN, "--out", "mpirun"]
    done = subprocess.run(
        [*command, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    one = onecurve("run", SMALL, *PLAN, "--out", "one", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert one.returncode == 0, one.stderr
    weights = [(tmp_path / out / "weights.safetensors").read_bytes() for out in ("mpirun", "one")]
    assert weights[0] == weights[1]
    assert not list((tmp_path / "mpirun").glob(".meeting*"))
