"""What `onecurve tune` is asked to search."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onecurve as oc
from onecurve.study.search_space import Choices, Range, SearchSpace, read_space


def test_ranges_choices_and_fixed_arguments_are_told_apart() -> None:
    space = read_space(["lr=1e-5..1e-2", "width=128,256", "steps=60", "depth=2..8", "path=../data", "drop=0.1..0.5"])
    assert space.searched == {
        "lr": Range(1e-5, 1e-2, False),
        "width": Choices(("128", "256")),
        "depth": Range(2, 8, True),
        "drop": Range(0.1, 0.5, False),
    }
    assert space.fixed == ("steps=60", "path=../data")
    assert [each.is_logarithmic for each in space.searched.values() if isinstance(each, Range)] == [True, False, False]
    assert space.arguments({"lr": "0.001"}) == ["steps=60", "path=../data", "lr=0.001"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lr=0.1"], "nothing to search"),
        (["lr"], "'lr' is not name=value"),
        (["lr=2..1"], "the first number must be the smaller one"),
        (["width=1,1"], "give each choice once"),
        (["width=1,"], "give each choice once"),
        (["lr=1..2", "lr=2..3"], "lr was given twice"),
        (["lr=1", "lr=2..3"], "lr was given twice"),
        (["=1..2"], "is not name=value"),
        (["lr=1..1"], "the first number must be the smaller one"),
    ],
)
def test_what_cannot_be_searched_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(oc.OnecurveError, match=message):
        read_space(words)


@given(st.floats(1e-8, 1e8), st.floats(1e-8, 1e8))
def test_texts_of_a_range_have_four_digits(low: float, value: float) -> None:
    text = Range(low, 2 * low, False).text(value)
    assert float(text) == pytest.approx(value, rel=1e-3)
    assert Range(1, 9, True).text(4.0) == "4"


def test_combinations_are_counted_where_there_are_finitely_many() -> None:
    assert SearchSpace({"a": Choices(("x", "y")), "b": Range(1, 4, True)}, ()).combinations == 8
    assert SearchSpace({"a": Choices(("x", "y")), "b": Range(1, 4, False)}, ()).combinations is None


@pytest.mark.parametrize(
    ("low", "high", "is_logarithmic"), [(1.0, 10.0, True), (1.0, 9.9, False), (0.0, 10.0, False), (-1.0, 10.0, False)]
)
def test_ranges_of_a_factor_of_ten_are_searched_by_their_logarithm(
    low: float, high: float, is_logarithmic: bool
) -> None:
    assert Range(low, high, False).is_logarithmic == is_logarithmic
