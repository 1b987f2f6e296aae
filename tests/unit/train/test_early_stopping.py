"""The best evaluation decides which checkpoint is kept, and when training stops early."""

import math
from typing import Any

import pytest

import onecurve as oc
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.record import EvaluationRecord
from onecurve.describe.summary import BestEvaluation
from onecurve.train.early_stopping import BestTracker
from onecurve.train.state import BestState


def tracker(**settings: Any) -> BestTracker:
    return BestTracker(oc.Evaluate(lambda: [], every=1, **settings))


def evaluation(step: int, loss: float, **metrics: float) -> EvaluationRecord:
    return EvaluationRecord(step, loss, metrics, samples=8, seconds=0.1)


def improvements(tracker: BestTracker, losses: list[float]) -> list[bool]:
    return [tracker.add(evaluation(step, loss)) for step, loss in enumerate(losses)]


def test_a_lower_loss_is_an_improvement_and_an_equal_one_is_not() -> None:
    best = tracker()
    assert improvements(best, [3.0, 2.0, 2.0, 2.5, 1.0]) == [True, True, False, False, True]
    assert best.best == BestEvaluation("loss", 1.0, 4)
    assert best.state == BestState("loss", "lower", 1.0, 4, evaluations_since=0)


def test_a_watched_metric_may_be_better_if_it_is_higher() -> None:
    best = tracker(watch="auc", better="higher")
    assert best.add(evaluation(0, 1.0, auc=0.5))
    assert not best.add(evaluation(1, 0.1, auc=0.4))
    assert best.add(evaluation(2, 9.0, auc=0.6))
    assert best.best == BestEvaluation("auc", 0.6, 2)


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_never_the_best(value: float, better: str) -> None:
    best = tracker(better=better)
    assert improvements(best, [value, value]) == [False, False]
    assert best.best is None
    assert improvements(best, [5.0, value]) == [True, False]
    assert best.best == BestEvaluation("loss", 5.0, 0)


def test_evaluations_that_are_not_finite_use_up_the_patience() -> None:
    best = tracker(patience=3)
    improvements(best, [math.nan, math.nan])
    resumed = tracker(patience=3)
    resumed.restore(from_json(BestState, to_json(best.state).encode(), "checkpoint"))
    assert not resumed.out_of_patience
    resumed.add(evaluation(3, math.nan))
    assert resumed.out_of_patience


def test_patience_counts_evaluations_without_an_improvement() -> None:
    best = tracker(patience=2)
    out_of_patience = []
    for step, loss in enumerate([3.0, 4.0, 2.0, 2.5, 2.25]):
        best.add(evaluation(step, loss))
        out_of_patience.append(best.out_of_patience)
    assert out_of_patience == [False, False, False, False, True]


def test_without_patience_training_never_stops_early() -> None:
    best = tracker()
    improvements(best, [1.0] * 100)
    assert not best.out_of_patience
    assert not tracker(patience=1).out_of_patience  # before the first evaluation


def test_a_resumed_run_continues_to_count() -> None:
    best = tracker(patience=3)
    best.restore(BestState("loss", "lower", 1.0, 10, evaluations_since=2))
    assert not best.out_of_patience
    assert not best.add(evaluation(20, 1.5))
    assert best.out_of_patience


@pytest.mark.parametrize("saved", [BestState("auc", "lower", 0.1, 10), BestState("loss", "higher", 9.0, 10), None])
def test_a_checkpoint_that_watched_something_else_is_not_compared_with(saved: BestState | None) -> None:
    best = tracker()
    best.restore(saved)
    assert best.best is None
    assert best.add(evaluation(20, 5.0))
