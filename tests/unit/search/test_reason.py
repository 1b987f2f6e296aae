from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.search.reason import reason

GIB = 1 << 30


def estimate(seconds: dict[str, float], memory: dict[str, float]) -> Estimate:
    return Estimate(Plan(), seconds, memory, 10 * GIB, 0.5, 100, 0.1)


BEST = estimate({"forward": 1.0, "bubble": 0.0}, {"weights": 1 * GIB})


def test_what_does_not_fit_says_by_how_much_and_of_what() -> None:
    found = reason(estimate({"forward": 0.1}, {"weights": 4 * GIB, "optimizer": 8 * GIB}), BEST)
    assert found == "does not fit: 12.0 GiB per rank, 2.0 GiB too much; most of it optimizer state"


def test_what_is_slower_says_what_for() -> None:
    found = reason(estimate({"forward": 0.9, "bubble": 0.3}, {"weights": GIB}), BEST)
    assert found == "20% slower: stages wait for each other (+300.0 ms)"


def test_much_slower_is_told_in_times() -> None:
    assert reason(estimate({"forward": 4.0}, {"weights": GIB}), BEST).startswith("4 times slower")


def test_as_fast_but_larger() -> None:
    found = reason(estimate({"forward": 1.0}, {"weights": 2 * GIB}), BEST)
    assert found == "as fast, but takes 1.0 GiB more memory"
