import pytest

from onecurve.describe.cluster import Link
from onecurve.predict.collective import alone

LINK = Link(latency=1e-6, bandwidth=1e9)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("all_gather", 3 * (1e-6 + 1e-3)),  # four ranks, 4 MB: three messages of 1 MB at 1 GB/s
        ("reduce_scatter", 3 * (1e-6 + 1e-3)),
        ("all_reduce", 6 * (1e-6 + 1e-3)),
    ],
)
def test_a_hand_worked_ring(kind, expected: float) -> None:
    assert alone(4, LINK).seconds(kind, 4_000_000) == pytest.approx(expected)


def test_one_rank_sends_nothing() -> None:
    assert alone(1, LINK).seconds("all_reduce", 1000) == 0
