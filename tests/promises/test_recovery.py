"""A run goes on when a rank fails, and computes the same."""

import json

import pytest

from harness import BENCHMARKS, python


@pytest.mark.parametrize(
    ("scenario", "count"), [("kill", 2), ("stop", 1), pytest.param("generations", 10, marks=pytest.mark.slow)]
)
def test_a_short_form_of_chaos(scenario: str, count: int) -> None:
    done = python(str(BENCHMARKS / "chaos.py"), scenario, "--count", str(count), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["finished"] == found["runs"], done.stderr
    assert found["max_recovery_s"] < 20, done.stderr  # on a busy machine; the benchmark's limit is 5
    if scenario == "generations":
        assert found["same_resources"], done.stderr
    else:
        assert found["exact"] == found["runs"] == count, done.stderr
    if scenario == "stop":
        assert found["named"] == count, done.stderr
