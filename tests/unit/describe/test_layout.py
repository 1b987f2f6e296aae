import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.describe.convert import from_plain, to_plain
from onecurve.describe.errors import OnecurveError
from onecurve.describe.layout import Layout
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan


@given(st.integers(0, 9), st.integers(1, 9))
def test_the_text_form_round_trips(dim: int, parts: int) -> None:
    assert Layout.parse(str(Layout(dim, parts))) == Layout(dim, parts)


@pytest.mark.parametrize("text", ["", "dim", "dim x", "dim 0 in 0 parts", "0", "dim -1"])
def test_what_cannot_be_read_says_how_it_should_read(text: str) -> None:
    with pytest.raises(OnecurveError, match="write it like"):
        Layout.parse(text)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))
def test_the_ranks_share_every_element_once(parts: int, degree: int, local_tensor: int) -> None:
    length = parts * degree * local_tensor
    held = [range(*run) for place in range(degree) for run in Layout(0, parts).runs(length, place, degree)]
    assert sorted(place for run in held for place in run) == list(range(length))


def test_three_parts_give_a_rank_its_heads_of_each() -> None:
    assert Layout(0, 3).runs(12, 1, 2) == [(2, 4), (6, 8), (10, 12)]


def test_a_plans_layouts_are_written_and_read() -> None:
    plan = Plan(Mesh(tensor=2), 8, layouts={"blocks.*.qkv.weight": "dim 0 in 3 parts"})
    assert from_plain(Plan, to_plain(plan), "plan") == plan
    assert str(plan) == "tensor2 mb8 fp32"


@pytest.mark.parametrize(
    ("layout", "shape", "degree", "fits"),
    [
        (Layout(0), (8, 3), 4, True),
        (Layout(0), (8, 3), 3, False),
        (Layout(1), (8, 3), 3, True),
        (Layout(2), (8, 3), 1, False),  # there is no dimension 2
        (Layout(0, 3), (12, 1), 2, True),
        (Layout(0, 3), (12, 1), 8, False),
        (Layout(0, 2), (6, 1), 2, False),
    ],
)
def test_which_tensors_can_be_split(layout: Layout, shape: tuple[int, ...], degree: int, fits: bool) -> None:
    assert layout.divides(shape, degree) is fits


def test_text_of_one_part_and_of_two() -> None:
    assert (str(Layout(1)), str(Layout(1, 2))) == ("dim 1", "dim 1 in 2 parts")
