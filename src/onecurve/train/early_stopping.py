"""The best evaluation so far, and whether it is time to give up hoping for a better one."""

import math
from dataclasses import dataclass

from onecurve.describe.record import EvaluationRecord
from onecurve.job.job import Evaluate


@dataclass
class BestTracker:
    """Every rank sees the same evaluations, so every rank comes to the same decision."""

    evaluate: Evaluate
    value: float = math.nan
    step: int = -1
    evaluations_since: int = 0
    """Evaluations since."""

    def add(self, record: EvaluationRecord) -> bool:
        """Whether it is the best so far."""
        value = record.loss if self.evaluate.watch == "loss" else record.metrics[self.evaluate.watch]
        sign = -1 if self.evaluate.better == "higher" else 1
        if math.isnan(self.value) or sign * value < sign * self.value:
            self.value, self.step, self.evaluations_since = value, record.step, 0
            return True
        self.evaluations_since += 1
        return False

    @property
    def out_of_patience(self) -> bool:
        return self.evaluate.patience is not None and self.evaluations_since >= self.evaluate.patience
