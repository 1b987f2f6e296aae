import pytest
from hypothesis import settings

# No deadline per example: on a shared machine, the time of one example varies too much.
settings.register_profile("onecurve", deadline=None)
settings.load_profile("onecurve")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests of promises, which take longest: several workers then end at about the same time."""
    items.sort(key=lambda item: "promises" not in item.path.parts)
