"""Well-known large models can be planned, by the benchmark that prints docs/zoo-plans.md."""

import json

import pytest

from harness import BENCHMARKS, TESTS, python

JOBS = sorted(file.stem for file in (TESTS / "zoo" / "plan").glob("*.py") if file.stem != "large_job")
SCRIPT = str(BENCHMARKS / "zoo_plans.py")


def test_every_job_has_a_cluster() -> None:
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); import zoo_plans; print(json.dumps([*zoo_plans.CLUSTERS]))"
    )
    done = python("-c", code, str(BENCHMARKS))
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)) == JOBS


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_well_known_model_is_planned(name: str) -> None:
    done = python(SCRIPT, "--only", name, "--json", timeout=1200)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    if "No module named" in row.get("error", ""):
        pytest.skip(row["error"])
    assert "error" not in row, row["error"]
    assert row["memory_bytes"] <= row["available_bytes"]
    assert row["processor_seconds"] < 120
