import pytest

from onecurve.describe.change import JobChange, read_change
from onecurve.describe.errors import OnecurveError


@pytest.mark.parametrize("change", ["lr, steps", "lr,steps,lr", ("lr", "steps"), ["lr", "steps"]])
def test_fields_are_read_from_text_and_lists(change: str | list[str]) -> None:
    assert read_change(change) == ("lr", "steps")


def test_nothing_is_changed_by_default() -> None:
    assert read_change(()) == ()


@pytest.mark.parametrize("name", ["seed", "learning_rate", ""])
def test_a_field_that_cannot_be_changed_is_refused_with_those_that_can(name: str) -> None:
    with pytest.raises(OnecurveError, match=f"--change {name}: .*; use lr, schedule, global_batch, steps or data"):
        read_change(f"lr,{name}")


def test_epochs_are_changed_as_steps() -> None:
    with pytest.raises(OnecurveError, match="use --change steps"):
        read_change("epochs")


def test_a_change_shows_both_values() -> None:
    assert str(JobChange("lr", "0.1", "0.2", 4)) == "lr 0.1 → 0.2"
