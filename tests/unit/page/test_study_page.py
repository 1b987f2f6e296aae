"""The page of a study has all trials, whatever they are called, and needs no network."""

import re
from dataclasses import replace

import pytest

from onecurve.describe.tuning import RangeTest, TunedTrial, Tuning
from onecurve.page.range_page import range_page
from onecurve.page.study_page import study_page

FINISHED = TunedTrial(
    number=0,
    arguments={"lr": "0.001", "name": "<b>"},
    outcome="finished",
    value=2.5,
    steps=60,
    seconds=9.0,
    curve=((10, 4.0), (60, 2.5)),
)
GIVEN_UP = replace(FINISHED, number=1, arguments={"lr": "0.1", "name": "b"}, outcome="pruned", value=None, steps=20)
FAILED = replace(GIVEN_UP, number=2, outcome="failed", curve=(), note="out of memory")


def tuning(*trials: TunedTrial) -> Tuning:
    return Tuning(
        out="runs/tune-gpt",
        objective="evaluation loss",
        followed="training loss",
        maximize=False,
        trials=trials,
        importance={},
        command="onecurve run train.py lr=0.001",
        trial_steps=60,
        seconds=20.0,
    )


@pytest.mark.parametrize("trials", [(), (FINISHED,), (FINISHED, GIVEN_UP, FAILED), (FAILED,)])
def test_a_page_of_any_study(trials: tuple[TunedTrial, ...]) -> None:
    page = study_page(tuning(*trials))
    assert "<b>" not in page
    assert not re.search(r"<script|https?://|src=", page)
    assert "nan" not in page
    for trial in trials:
        assert f"<td>{trial.number}</td>" in page
    assert ("out of memory" in page) == (FAILED in trials)


def test_the_page_of_a_range_test() -> None:
    points = tuple((10.0 ** (n / 10 - 6), 5.0 - n / 20) for n in range(40))
    test = RangeTest(out="runs/range-gpt", argument="lr", points=points, fastest=points[20][0], lowest=points[-1][0])
    page = range_page(test)
    assert f"lr={points[20][0]:.3g}" in page
    assert not re.search(r"<script|https?://|src=", page)
