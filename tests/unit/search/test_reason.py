import pytest

from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.search.reason import reason

GIB = 1 << 30


def estimate(seconds: dict[str, float], memory: dict[str, float]) -> Estimate:
    return Estimate(Plan(), seconds, memory, 10 * GIB, 0.5, 100, 0.1)


BEST = estimate({"forward": 1.0, "bubble": 0.0}, {"weights": 1 * GIB})


def test_a_plan_that_does_not_fit_names_the_excess_and_the_largest_component() -> None:
    text = reason(estimate({"forward": 0.1}, {"weights": 4 * GIB, "optimizer": 8 * GIB}), BEST)
    assert text == "does not fit: 12.0 GiB per rank, 2.0 GiB too much; most of it optimizer state"


def test_a_slower_plan_names_the_cause() -> None:
    text = reason(estimate({"forward": 0.9, "bubble": 0.3}, {"weights": GIB}), BEST)
    assert text == "20% slower: stages wait for each other (+300.0 ms)"


def test_a_much_slower_plan_is_described_by_a_factor() -> None:
    assert reason(estimate({"forward": 4.0}, {"weights": GIB}), BEST).startswith("4 times slower")


def test_as_fast_but_larger() -> None:
    text = reason(estimate({"forward": 1.0}, {"weights": 2 * GIB}), BEST)
    assert text == "as fast, but needs 1.0 GiB more memory"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(1.0, "as fast"), (1.0049, "as fast"), (1.006, "1% slower"), (2.99, "199% slower"), (3.0, "3 times slower")],
)
def test_how_much_slower(seconds: float, words: str) -> None:
    assert reason(estimate({"forward": seconds}, {"weights": GIB}), BEST).startswith(words)


def test_a_cause_that_the_best_plan_does_not_have() -> None:
    text = reason(estimate({"forward": 1.0, "tensor": 0.5}, {"weights": GIB}), BEST)
    assert text.startswith("50% slower: matrix products wait")
    assert text.endswith("(+500.0 ms)")


def test_as_fast_with_about_the_same_memory() -> None:
    assert reason(estimate({"forward": 1.0}, {"weights": 1.005 * GIB}), BEST) == "as fast"
    assert reason(estimate({"forward": 1.0}, {"weights": 0.5 * GIB}), BEST) == "as fast"
    best = estimate({"forward": 1.0}, {"weights": 100.0})
    assert reason(estimate({"forward": 1.0}, {"weights": 101.0}), best) == "as fast"
    assert reason(estimate({"forward": 1.0}, {"weights": 102.0}), best) == "as fast, but needs 2 B more memory"


def test_a_plan_that_uses_all_memory_fits() -> None:
    assert reason(estimate({"forward": 1.0}, {"weights": 10 * GIB}), BEST).startswith("as fast, but")


def planned(text: str, step: float) -> Estimate:
    return Estimate(
        plan=Plan.parse(text),
        seconds={"forward": step},
        memory={"weights": GIB},
        available_bytes=10 * GIB,
        utilization=0.5,
        steps=100,
        error=0.1,
    )


def test_a_faster_plan_that_was_not_chosen_is_less_simple() -> None:
    chosen = planned("shard4 mb2", 1.0)
    text = reason(planned("pipeline2·shard2 mb1×4", 0.97), chosen)
    assert text == "predicted 3.0% faster, but less simple: 2 axes instead of 1"
    assert reason(planned("shard4 mb2 zero2", 1.0), chosen) == "as fast, but less simple: more options (zero2)"
    assert reason(planned("shard4 mb2 zero2", 1.1), chosen).startswith("10% slower")


def test_slowness_is_relative_to_the_best_plan() -> None:
    best = estimate({"forward": 2.0}, {"weights": GIB})
    assert reason(estimate({"forward": 3.0}, {"weights": GIB}), best).startswith("50% slower")


def test_a_plan_that_is_faster_by_less_than_half_a_percent_is_as_fast() -> None:
    assert reason(estimate({"forward": 0.996}, {"weights": GIB}), BEST) == "as fast"
    assert reason(estimate({"forward": 0.994}, {"weights": GIB}), BEST) == "predicted 0.6% faster"
    assert reason(estimate({"forward": 1.004}, {"weights": GIB}), BEST) == "as fast"
