"""Tracks the best evaluation, and stops a run that has not improved for too long."""

import math
from dataclasses import replace

from onecurve.describe.record import EvaluationRecord
from onecurve.job.job import Evaluate
from onecurve.train.state import BestState


class BestTracker:
    """Every rank sees the same evaluations, so every rank takes the same decision."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self.best: BestState | None = None

    def add(self, record: EvaluationRecord) -> bool:
        """Take note of an evaluation; return True if it is the best so far."""
        watch, better = self._evaluate.watch, self._evaluate.better
        value = record.loss if watch == "loss" else record.metrics[watch]
        sign = -1 if better == "higher" else 1
        if self.best is None or math.isnan(self.best.value) or sign * value < sign * self.best.value:
            self.best = BestState(watch, better, value, record.step)
            return True
        self.best = replace(self.best, evaluations_since=self.best.evaluations_since + 1)
        return False

    def restore(self, best: BestState | None) -> None:
        """Continue from a checkpoint, unless it watched something else."""
        if best is not None and (best.watch, best.better) == (self._evaluate.watch, self._evaluate.better):
            self.best = best

    @property
    def out_of_patience(self) -> bool:
        patience = self._evaluate.patience
        return patience is not None and self.best is not None and self.best.evaluations_since >= patience
