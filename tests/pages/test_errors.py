"""Every message of an OnecurveError has an entry in the documentation."""

from pathlib import Path

import pytest

from pages.error_messages import SOURCE, first_words

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")


COMPOSED = {
    "its scalar is not a mean over samples": "job/loss_trial.py",
    "its scalar is not a mean over samples for all targets": "job/rare_targets.py",
    "it contains the mean of": "job/objective.py",
    "its scalar is a sum over samples, not a mean": "job/loss_trial.py",
    "the value of a sample depends on the other samples of its batch": "job/loss_trial.py",
    "its Weighted does not add up": "job/loss_trial.py",
}
"""Messages that are put together from parts, which `first_words` does not follow."""


@pytest.mark.parametrize(("words", "places"), first_words().items(), ids=lambda value: str(value)[:40])
def test_a_message_has_an_entry(words: str, places: list[str]) -> None:
    assert words in PAGE, (
        f"add an entry to docs/errors.md for the message that begins with {words!r} ({', '.join(places)})"
    )


@pytest.mark.parametrize("words", COMPOSED)
def test_a_composed_message_has_an_entry(words: str) -> None:
    assert words in (SOURCE / COMPOSED[words]).read_text(encoding="utf-8")
    assert words in PAGE
