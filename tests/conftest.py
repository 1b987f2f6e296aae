from pathlib import Path

import pytest
from hypothesis import settings

# No deadline per example: on a shared machine, the time of one example varies too much.
settings.register_profile("onecurve", deadline=None)
settings.load_profile("onecurve")

TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow set. Begin with the tests of promises, which take longest: several workers then end at about the
    same time."""
    slow = {line for line in (TESTS / "slow_set.txt").read_text().splitlines() if not line.startswith("#")}
    for item in items:
        if item.nodeid.removeprefix("tests/") in slow:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not {"promises", "pages"} & set(item.path.parts))


@pytest.fixture(autouse=True, scope="session")
def _the_slow_set_exists() -> None:
    """A test that was renamed must not come back into CI unnoticed, nor stay on the list."""
    for line in (TESTS / "slow_set.txt").read_text().splitlines()[1:]:
        file, _, name = line.partition("::")
        assert f"def {name.partition('[')[0]}(" in (TESTS / file).read_text(encoding="utf-8"), f"there is no {line}"
