"""A decision that is new is followed by a test of the micro-batches of its step; one that is known is not."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch

from onecurve.data.order import share_bounds
from onecurve.describe.plan import Plan
from onecurve.job.batch import MicroBatch
from onecurve.train.branch_watch import BranchWatch


def watch_of(plan: str, data_rank: int = 0) -> tuple[BranchWatch, list[tuple[list[list[int]], str]]]:
    tested: list[tuple[list[list[int]], str]] = []

    def read(begin: int, end: int, copies: int) -> MicroBatch:
        return MicroBatch([*range(begin, end)] * copies, None, end - begin)

    def test(micros: Sequence[MicroBatch], decided: str) -> None:
        tested.append(([micro.inputs for micro in micros], decided))

    parsed = Plan.parse(plan)
    share = partial(share_bounds, parsed, data_rank)
    watch = BranchWatch(plan=parsed, share=share, group=None, device=torch.device("cpu"), read=read, test=test)
    return watch, tested


def take(watch: BranchWatch, value: float) -> None:
    with watch.watched():
        assert bool(torch.tensor(value) > 0) is (value > 0)


def test_only_new_decisions_are_tested_and_all_rounds_of_their_step() -> None:
    watch, tested = watch_of("mb4×2")
    take(watch, 1.0)
    watch.verify(1, 0)
    take(watch, 2.0)
    watch.verify(2, 8)
    assert [micros for micros, _ in tested] == [
        [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7]],
        [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7]],
    ]
    assert all(decided.startswith(f"step 1: {__file__}:") and decided.endswith(" is True") for _, decided in tested)
    take(watch, -1.0)
    watch.verify(3, 16)
    assert len(tested) == 4
    assert tested[-1][1].endswith(" is False")


@pytest.mark.parametrize(
    ("plan", "data_rank", "expected"),
    [
        ("replicate2 mb8", 0, [[*range(16, 28)], [*range(16, 24)], [*range(24, 28)]]),
        ("replicate2 mb8", 1, [[*range(20, 32)], [*range(20, 24)], [*range(24, 32)]]),
    ],
    ids=["first", "last"],
)
def test_a_micro_batch_is_tested_beside_others_of_the_same_batch(
    plan: str, data_rank: int, expected: list[list[int]]
) -> None:
    watch, tested = watch_of(plan, data_rank)
    take(watch, 1.0)
    watch.verify(2, 16)
    assert [micros for micros, _ in tested] == [expected]
