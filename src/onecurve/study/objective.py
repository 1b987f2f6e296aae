"""What the trials of a study are compared by, and how it is read from the records of a run."""

import math
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from onecurve.describe.record import EvaluationRecord, StepRecord
from onecurve.runs.folder import records_file
from onecurve.runs.records import record_of

_LEAST_EVALUATIONS = 6
"""With fewer evaluations in a trial, the training loss decides which trials are pruned."""
_MEAN = 1 / 20
"""Part of a trial over which training losses are averaged."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What the trials are compared by."""

    steps: int
    """Training steps of a trial."""
    watch: str = ""
    """The value of an evaluation: `loss` or a metric; empty if the job has no evaluation."""
    maximize: bool = False
    evaluations: int = 0
    """Evaluations in a trial."""

    @property
    def text(self) -> str:
        return f"evaluation {self.watch}" if self.watch else "training loss"

    @property
    def followed(self) -> str:
        """What decides which trials are pruned, for a person."""
        return self.text if self.follows_evaluations else "training loss"

    @property
    def follows_evaluations(self) -> bool:
        """True if evaluations decide which trials are pruned."""
        return self.evaluations >= _LEAST_EVALUATIONS

    @property
    def averaged_steps(self) -> int:
        return max(1, round(_MEAN * self.steps))


class TrialProgress:
    """Follows the records of a trial's run."""

    def __init__(self, folder: Path, objective: Objective) -> None:
        self._file, self._objective = records_file(folder, 0), objective
        self._read = 0
        self._losses: deque[float] = deque(maxlen=objective.averaged_steps)
        self._evaluation = math.nan
        self.step = 0
        """Steps done."""

    @property
    def value(self) -> float:
        """What the trial is compared by at its end."""
        return self._evaluation if self._objective.watch else self._mean_loss

    @property
    def diverges(self) -> bool:
        """True if the newest training loss is not finite."""
        return bool(self._losses) and not math.isfinite(self._losses[-1])

    def new_values(self) -> list[tuple[int, float]]:
        """Read what was written since the last call; return (step, value) for what others are compared with."""
        values = []
        for line in self._new_lines():
            record = record_of(line, str(self._file))
            if isinstance(record, StepRecord):
                self.step = record.step
                self._losses.append(record.loss)
                if not self._objective.follows_evaluations and record.step % self._objective.averaged_steps == 0:
                    values.append((record.step, self._sign * self._mean_loss))
            elif isinstance(record, EvaluationRecord) and record.kind == "evaluation":
                named = {"loss": record.loss, **record.metrics}
                self._evaluation = named.get(self._objective.watch, math.nan)
                if self._objective.follows_evaluations:
                    values.append((record.step, self._evaluation))
        return values

    @property
    def _sign(self) -> float:
        """A training loss is always better if it is smaller, also where the study makes a metric large."""
        return -1.0 if self._objective.maximize else 1.0

    @property
    def _mean_loss(self) -> float:
        return sum(self._losses) / len(self._losses) if self._losses else math.nan

    def _new_lines(self) -> list[bytes]:
        """The complete lines that were written since the last call."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._read)
                content = file.read()
        except FileNotFoundError:
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self._read += len(complete)
        return complete.splitlines(keepends=True)
