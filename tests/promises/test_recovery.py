"""A run goes on when ranks and hosts fail, and computes the same: a short form of each scenario of chaos.py."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import BENCHMARKS, JOBS, python

LOOP = str(JOBS / "loop.py")


def can_limit(controller: str) -> bool:
    """True if processes can be put into a control group of their own (version 1)."""
    return os.access(f"/sys/fs/cgroup/{controller}/cgroup.procs", os.W_OK)


needs_memory_limit = pytest.mark.skipif(not can_limit("memory"), reason="needs root and cgroup v1's memory controller")
needs_cpu_limit = pytest.mark.skipif(not can_limit("cpu"), reason="needs root and cgroup v1's cpu controller")


def chaos(scenario: str, *options: str) -> tuple[dict[str, Any], str]:
    """Run a scenario; return what it found, and its log."""
    done = python(str(BENCHMARKS / "chaos.py"), scenario, *options, "--json", timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["finished"] == found["runs"] > 0, done.stderr
    return found, done.stderr


@pytest.mark.waits
@pytest.mark.parametrize("scenario", ["kill", "again", "stop", "flip", pytest.param("oom", marks=needs_memory_limit)])
def test_a_run_goes_on_and_is_exact(scenario: str) -> None:
    found, log = chaos(scenario, "--count", "1")
    assert found["exact"] == found["runs"], log
    if scenario not in ("kill", "again"):
        assert found["named"] == found["runs"], log
    if scenario in ("kill", "stop"):
        assert found["max_recovery_s"] < 20, log  # on a busy machine; the limits are 5 and 8


@pytest.mark.hosts
@needs_cpu_limit
@pytest.mark.parametrize(("scenario", "steps"), [("host", 120), ("leader", 60), ("partition", 60)])
def test_a_run_on_several_hosts_goes_on_and_is_exact(scenario: str, steps: int) -> None:
    found, log = chaos(scenario, "--count", "1", "--steps", str(steps))
    assert found["exact"] == found["runs"], log
    if scenario == "host":
        assert found["max_recovery_s"] < 20, log  # on a busy machine; the limit is 7
    if scenario == "leader":
        assert found["statuses_without_etcd"] == [75, 75], log
    if scenario == "partition":
        assert found["both_committed"] == 0, log


@pytest.mark.waits
def test_a_script_with_its_own_loop_starts_again_from_a_snapshot(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "onecurve", "run", LOOP]
    options = ["--plan", "replicate2 mb4"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    alone = subprocess.run([*command, "whole", "6", "0", *options], cwd=tmp_path, env=environment, check=False)
    assert alone.returncode == 0
    with subprocess.Popen(
        [*command, "broken", "6", "0.05", *options],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step 20 of 48") and lines.count(line) == 1:
                (template,) = children_of(process.pid)
                os.kill(children_of(template)[1], signal.SIGKILL)
    output = "".join(lines)
    assert process.returncode == 0, output
    assert "lost rank 1 on " in output, output
    steps = [int(line.split()[1]) for line in lines if line.startswith("step ")]
    assert steps[:20] == list(range(1, 21))
    assert steps[-1] == 48
    assert steps[steps.index(20) + 1 :][0] > 1, "it has started from the beginning"
    weights = [(tmp_path / out / "weights.safetensors").read_bytes() for out in ("whole", "broken")]
    assert weights[0] == weights[1]


@pytest.mark.waits
def test_a_loop_that_is_stopped_ends_with_75_and_continues(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "onecurve", "run", LOOP, "stopped", "2"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([*command, "0.3", "--ranks", "2"], cwd=tmp_path, **pipes) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step 3 of 16"):
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stdout.read()
    assert process.returncode == 75, rest
    assert "onecurve: the training was stopped before its last step" in rest
    again = subprocess.run([*command, "0", "--ranks", "2"], cwd=tmp_path, check=False, **pipes)
    assert again.returncode == 0, again.stdout
    steps = [int(line.split()[1]) for line in again.stdout.splitlines() if line.startswith("step ")]
    assert steps[0] > 3
    assert steps[-1] == 16


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.alone
@needs_cpu_limit
def test_a_slow_rank_is_named_and_gets_less() -> None:
    found, log = chaos("slow", "--count", "1")
    assert found["named"] == 1, log
    assert found["step_ratio"] < 0.9, log  # on a busy machine; the limit is 0.8


@pytest.mark.alone
def test_long_calls_are_named_and_are_no_failures() -> None:
    found, log = chaos("calm", "--minutes", "0.8")
    assert found["false_alarms"] == 0, log
    assert found["named"] == found["long_calls"] > 1, log


@pytest.mark.waits
def test_a_run_that_is_killed_every_ten_seconds_gets_on() -> None:
    found, log = chaos("storm", "--minutes", "0.4", "--every", "10")
    assert found["effective_time"] > 0.5, log


@pytest.mark.waits
def test_processes_that_live_through_generations_do_not_grow() -> None:
    found, log = chaos("generations", "--count", "10")
    assert found["same_resources"], log
    assert found["memory_ratio"] < 1.2, log
