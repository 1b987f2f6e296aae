"""What crosses a pipeline cut, and which units a stage needs (tests/unit/measure tests how a data flow is recorded)."""

import pytest

from onecurve.describe.dataflow import BlockOutput, Dataflow

# Block 1 reads block 0; block 2 reads blocks 0 and 1 (a skip connection); the output reads block 2.
FLOW = Dataflow(
    blocks=("b.0", "b.1", "b.2"),
    units=("embedding", "norm", "head"),
    sources=((), (BlockOutput(0, 0),), (BlockOutput(1, 0), BlockOutput(0, 1)), (BlockOutput(2, 0),)),
    used=(frozenset({"embedding"}), frozenset(), frozenset({"norm"}), frozenset({"head"})),
)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (0, ()),
        (1, (BlockOutput(0, 0), BlockOutput(0, 1))),
        (2, (BlockOutput(0, 1), BlockOutput(1, 0))),
        (3, (BlockOutput(2, 0),)),
    ],
)
def test_tensors_that_cross_a_cut(end: int, expected: tuple[BlockOutput, ...]) -> None:
    assert FLOW.tensors_crossing(end) == expected


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(0, 2, {"embedding"}), (1, 2, set()), (2, 3, {"norm", "head"}), (0, 3, {"embedding", "norm", "head"})],
)
def test_units_of_a_stage_where_the_last_stage_has_the_output(begin: int, end: int, expected: set[str]) -> None:
    assert FLOW.units_needed(begin, end) == expected
