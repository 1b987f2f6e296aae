"""Every message of an OnecurveError has an entry in the documentation."""

from pathlib import Path

import pytest

from pages.error_messages import first_words

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("words", "places"), first_words().items(), ids=lambda value: str(value)[:40])
def test_a_message_has_an_entry(words: str, places: list[str]) -> None:
    assert words in PAGE, (
        f"add an entry to docs/errors.md for the message that begins with {words!r} ({', '.join(places)})"
    )
