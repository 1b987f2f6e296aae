"""Two processes compare their data by marks: a difference is named with position, values, cause and fix."""

from onecurve.describe.convert import to_json
from onecurve.describe.data_marks import DataMarks, SampleMark, ValueMark, difference, sample_difference

SIDES = "on rank 0 (a)", "on rank 1 (b)"


def exactly(text: str) -> ValueMark:
    return ValueMark(text, text, (), text)


def numbers(text: str, *sums: float) -> ValueMark:
    return ValueMark(text, "float32 [3]", sums, text)


def marks(*targets: ValueMark | None, first: int = 0, value: ValueMark | None = None, probe: int = 1) -> DataMarks:
    value = value or exactly("picture")
    samples = [SampleMark(first + number, value, target) for number, target in enumerate(targets)]
    return DataMarks(length=8, samples=tuple(samples), hash_probe=probe)


def test_targets_that_differ_are_shown_with_their_position_and_the_likely_cause() -> None:
    one, other = (
        marks(exactly("1"), exactly("3"), exactly("4")),
        marks(exactly("1"), exactly("5"), exactly("2"), probe=2),
    )
    text = difference("data", one, other, SIDES)
    assert text.startswith(
        "data: dataset[1] is not the same: target 3 on rank 0 (a), 5 on rank 1 (b) (2 of 3 samples that were compared "
        "differ). Inputs are equal and targets are not"
    )
    assert "sorted(names)" in text
    assert "PYTHONHASHSEED=0" in text


def test_inputs_that_differ_point_at_splits_and_files() -> None:
    text = difference("data", marks(exactly("1"), value=exactly("x")), marks(exactly("1"), value=exactly("y")), SIDES)
    assert "input x on rank 0 (a), y on rank 1 (b)" in text
    assert "generator=" in text
    assert "os.listdir" in text
    assert "PYTHONHASHSEED" not in text


def test_another_length_is_named_with_both() -> None:
    shorter = DataMarks(7, (), 1)
    assert "it has 8 samples on rank 0 (a) and 7 on rank 1 (b)" in difference("data", marks(), shorter, SIDES)


def test_only_positions_and_parts_that_both_have_are_compared() -> None:
    assert difference("data", marks(exactly("1")), marks(exactly("2"), first=3), SIDES) == ""
    assert difference("data", marks(exactly("1")), marks(None), SIDES) == ""


def test_numbers_that_are_rounded_otherwise_are_equal_and_others_are_not() -> None:
    mine = numbers("x", 100.0, 3.0, -2.0)
    assert difference("data", marks(mine), marks(numbers("y", 100.0, 3.0001, -2.0)), SIDES) == ""
    assert "target x" in difference("data", marks(mine), marks(numbers("y", 100.0, 3.01, -2.0)), SIDES)
    one, other = marks(exactly("1"), value=mine), marks(exactly("1"), value=numbers("y", 100.0, 3.05, -2.0))
    assert difference("data", one, other, SIDES) == ""  # an input may differ by a little more
    other = marks(exactly("1"), value=numbers("y", 100.0, 4.0, -2.0))
    assert "input x" in difference("data", one, other, SIDES)


def test_a_fingerprint_without_samples_or_of_another_format_does_not_differ() -> None:
    saved = to_json(marks(exactly("1")))
    assert sample_difference(saved, to_json(marks(exactly("2"))), SIDES)
    assert sample_difference("", saved, SIDES) == ""
    assert sample_difference('{"version": 9}', saved, SIDES) == ""
