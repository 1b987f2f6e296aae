"""The prediction error on published runs; benchmarks/published_runs.py prints it in full."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def benchmarks():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def results():
    import published_runs

    return published_runs.judge(published_runs.read(published_runs.DATA))


def test_dense_runs_are_predicted_within_ten_percent(results) -> None:
    assert results["overall"]["n"] == 1336
    assert results["overall"]["mape"] <= 10
    assert results["not_seen"]["mape"] <= 10
    assert results["without_framework_factors"]["mape"] <= 10


def test_no_large_source_is_off_by_more_than_fifteen(results) -> None:
    large = {name: source["mape"] for name, source in results["by_source"].items() if source["n"] >= 10}
    assert len(large) == 4
    assert max(large.values()) <= 15


def test_memory_and_runs_that_are_reported_separately(results) -> None:
    assert results["memory"]["mape"] <= 15
    assert results["moe_fp8"]["mape"] <= 20


def test_fitted_constants_stay_within_their_limits() -> None:
    import fit

    constants, efficiencies, score = fit.Fit().choose(trials=5)
    assert all(low <= getattr(constants, name) <= high for name, (low, high) in fit.LIMITS.items())
    assert set(efficiencies) == {"composer", "torchtitan", "jax"}
    assert score < 10
