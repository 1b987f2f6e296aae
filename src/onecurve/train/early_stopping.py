"""Tracks the best evaluation, and stops a run that has not improved for too long."""

import math
from dataclasses import replace

from onecurve.describe.record import EvaluationRecord
from onecurve.describe.summary import BestEvaluation
from onecurve.job.evaluate import Evaluate
from onecurve.train.state import BestState


class BestTracker:
    """Every rank sees the same evaluations, so every rank takes the same decision."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.state = BestState(evaluate.watch, evaluate.better)

    def add(self, record: EvaluationRecord) -> bool:
        """Take note of an evaluation; return True if it is the best so far. NaN and infinity are no improvement."""
        state = self.state
        value = record.loss if state.watch == "loss" else record.metrics[state.watch]
        sign = -1 if state.better == "higher" else 1
        if math.isfinite(value) and (state.value is None or sign * value < sign * state.value):
            self.state = BestState(state.watch, state.better, value, record.step)
            return True
        self.state = replace(state, evaluations_since=state.evaluations_since + 1)
        return False

    def restore(self, state: BestState | None) -> None:
        """Continue from a checkpoint, unless it watched something else."""
        if state is not None and (state.watch, state.better) == (self._evaluate.watch, self._evaluate.better):
            self.state = state

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation; None if there was none with a finite value."""
        state = self.state
        return None if state.value is None else BestEvaluation(state.watch, state.value, state.step)

    @property
    def out_of_patience(self) -> bool:
        patience = self._evaluate.patience
        return patience is not None and self.state.evaluations_since >= patience
