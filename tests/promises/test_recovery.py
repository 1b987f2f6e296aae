"""A run goes on when ranks and hosts fail, and computes the same: a short form of each scenario of chaos.py."""

import json
import os
from typing import Any

import pytest

from harness import BENCHMARKS, python

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="control groups and network namespaces need root")


def chaos(scenario: str, *options: str) -> tuple[dict[str, Any], str]:
    """Run a scenario; return what it found, and its log."""
    done = python(str(BENCHMARKS / "chaos.py"), scenario, *options, "--json", timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["finished"] == found["runs"] > 0, done.stderr
    return found, done.stderr


@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("kill", ("--count", "1")),
        ("stop", ("--count", "1")),
        ("flip", ("--count", "1")),
        pytest.param("oom", ("--count", "1"), marks=[needs_root, pytest.mark.slow]),
        pytest.param("host", ("--count", "1"), marks=[needs_root, pytest.mark.slow]),
        pytest.param("leader", ("--count", "1", "--steps", "200"), marks=[needs_root, pytest.mark.slow]),
        pytest.param("partition", ("--count", "1", "--steps", "200"), marks=[needs_root, pytest.mark.slow]),
    ],
)
def test_a_run_goes_on_and_is_exact(scenario: str, options: tuple[str, ...]) -> None:
    found, log = chaos(scenario, *options)
    assert found["exact"] == found["runs"], log
    if scenario in ("stop", "flip", "oom"):
        assert found["named"] == found["runs"], log
    if scenario in ("kill", "stop", "host"):
        assert found["max_recovery_s"] < 20, log  # on a busy machine; the limits are 5, 8 and 7
    if scenario == "leader":
        assert found["statuses_without_etcd"] == [75, 75], log
    if scenario == "partition":
        assert found["both_committed"] == 0, log


@needs_root
@pytest.mark.slow
def test_a_slow_rank_is_named_and_gets_less() -> None:
    found, log = chaos("slow", "--count", "1")
    assert found["named"] == 1, log
    assert found["step_ratio"] < 0.9, log


@pytest.mark.slow
def test_long_calls_are_no_failures() -> None:
    found, log = chaos("calm", "--minutes", "0.7")
    assert found["false_alarms"] == 0, log


@pytest.mark.slow
def test_a_run_that_is_killed_every_ten_seconds_gets_on() -> None:
    found, log = chaos("storm", "--minutes", "0.5", "--every", "10")
    assert found["effective_time"] > 0.5, log


@pytest.mark.slow
def test_processes_that_live_through_generations_do_not_grow() -> None:
    found, log = chaos("generations", "--count", "10")
    assert found["same_resources"], log
    assert found["memory_ratio"] < 1.2, log
