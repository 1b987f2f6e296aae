"""What four results of a share say: a fault of a rank, or a reason for which there is nothing to compare."""

from collections.abc import Iterable

import pytest

from onecurve.train.audit_verdict import ShareFinding, judge

EQUAL = (0, 0, 0, 0)


def ring(results: dict[int, tuple[int, int, int, int]], count: int, **others: object) -> list[ShareFinding]:
    """Findings of `count` data-parallel ranks, of which the next one recomputes each one's share; 10 × the data rank is
    the rank. `results`: by owner; all others are equal."""
    return [
        ShareFinding(
            owner=owner,
            witness=(owner - 1) % count,
            rank=10 * owner,
            witness_rank=10 * ((owner - 1) % count),
            results=results.get(owner, EQUAL),
            tensor=f"weight{owner}",
            **(others if owner in results else {}),
        )
        for owner in range(count)
    ]


@pytest.mark.parametrize(
    ("results", "count", "ranks"),
    [
        ({1: (0, 1, 1, 1)}, 2, [10]),  # its step was wrong, once
        ({1: (0, 1, 0, 0)}, 2, [10]),
        ({1: (0, 0, 1, 0)}, 2, [0]),  # the witness was wrong, once
        ({1: (0, 0, 0, 1)}, 2, [0]),
        ({1: (0, 1, 2, 2), 2: (0, 0, 1, 2)}, 3, [10]),  # wrong in another way each time
        ({1: (0, 0, 1, 1), 2: (0, 0, 1, 1)}, 3, [10]),  # wrong in the same way each time
        ({0: (0, 0, 1, 1), 3: (0, 0, 1, 1)}, 4, [30]),
        ({0: (0, 1, 1, 1)}, 1, [0]),  # alone, once
    ],
)
def test_a_rank_is_at_fault(results: dict[int, tuple[int, int, int, int]], count: int, ranks: Iterable[int]) -> None:
    verdict = judge(ring(results, count))
    assert (verdict.kind, list(verdict.ranks), verdict.is_certain) == ("faulty", ranks, True)


def test_of_two_ranks_that_repeat_themselves_one_is_at_fault() -> None:
    verdict = judge(ring({0: (0, 0, 1, 1), 1: (0, 0, 1, 1)}, 2))
    assert (verdict.kind, verdict.ranks, verdict.is_certain) == ("faulty", (0, 10), False)


@pytest.mark.parametrize(
    ("results", "count"),
    [
        ({0: (0, 1, 2, 3), 1: (0, 1, 2, 3)}, 2),  # random numbers without a seed
        ({0: (0, 1, 2, 3)}, 1),
        ({0: (0, 0, 1, 1)}, 1),  # state that the audit does not know changes the second result
        ({0: (0, 1, 1, 1), 1: (0, 1, 1, 1)}, 2),  # all at once: that is not hardware
    ],
)
def test_a_model_that_does_not_repeat_itself_is_no_fault(
    results: dict[int, tuple[int, int, int, int]], count: int
) -> None:
    assert judge(ring(results, count)).kind == "not repeatable"


def test_machines_that_round_differently_are_no_fault() -> None:
    split = (0, 0, 1, 1)
    assert judge(ring({0: split, 1: split}, 2, is_rounding=True)).kind == "not comparable"
    assert judge(ring(dict.fromkeys(range(4), split), 4)).kind == "not comparable"
    assert (
        judge(ring({0: split, 2: split}, 4)).kind == "not comparable"
    )  # ranks 0 and 1 on one kind, 2 and 3 on another


def test_other_samples_are_no_fault() -> None:
    assert judge(ring({1: (0, 0, 1, 1)}, 2, same_samples=False)).kind == "other samples"
