"""Scripts that are written from the cells of a notebook."""

from types import FunctionType, ModuleType
from typing import Any

import pytest

from onecurve.describe.errors import OnecurveError
from onecurve.job.notebook import script_text


def executed(cells: list[str]) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        exec(cell, namespace)
    return namespace


def test_a_script_has_what_the_job_uses_and_nothing_else() -> None:
    cells = [
        "import math\nimport json as unused\nfrom collections import Counter",
        "def helper(x):\n    return 1",
        "RATE = 1",
        "RATE = 2\nunused_too = open",
        "class Base:\n    pass\n\nclass Model(Base):\n    size = RATE",
        "def helper(x):\n    return Counter([math.floor(x)])",
        "import functools\n@functools.cache\ndef job(lr=RATE):\n    return helper(lr), Model, [y for y in range(3)]",
    ]
    text = script_text("job", cells, executed(cells))
    assert "unused" not in text
    assert text.count("def helper") == 1
    assert "RATE = 2" in text
    assert "@functools.cache" in text
    found = executed([text])
    assert found["job"](1.5)[0] == {1: 1}


def test_another_name_and_a_value_that_a_cell_assigns() -> None:
    cells = ["def train(n=3):\n    return n", "made = train(5)"]
    namespace = executed(cells)
    assert executed([script_text("train", cells, namespace)])["job"]() == 3
    found = executed([script_text("made", cells, namespace)])["job"]
    assert isinstance(found, FunctionType)
    assert found() == 5


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["thing = object()", "def job():\n    return thing"], "'thing', an object of type object"),
        (["def job():\n    return missing"], "'missing', which is not defined"),
        (["R = 1", "def job(lr=R):\n    return lr", "R = 2"], "'R' has changed since 'job' was defined with it"),
        (["R = 1", "class A:\n    b = R", "def job():\n    return A", "R = 2"], "execute the cell of 'A' again"),
    ],
)
def test_what_cannot_be_written_is_refused(cells: list[str], message: str) -> None:
    with pytest.raises(OnecurveError, match=message):
        script_text("job", cells, executed(cells))


def test_a_module_without_an_import_in_a_cell_is_imported() -> None:
    namespace = executed(["def job():\n    return np.__name__"])
    namespace["np"] = ModuleType("json")
    text = script_text("job", ["def job():\n    return np.__name__"], namespace)
    assert executed([text])["job"]() == "json"
