"""Results that a notebook shows as tables and curves."""

from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onecurve.describe.advice import Advice
from onecurve.describe.record import EvaluationRecord, StepRecord
from onecurve.describe.summary import RunSummary
from onecurve.describe.verdict import CheckResult
from onecurve.page.notebook import advice_html, check_html, loss_curve, run_html
from onecurve.page.plot import Point
from onecurve.runs.records import read_records


@dataclass(frozen=True, kw_only=True)
class TrainedRun(RunSummary):
    """How a run ended, with its records."""

    def records(self) -> Any:
        """The records of all steps: a pandas DataFrame, or a list of dicts if pandas is not installed."""
        rows = [asdict(record) for record in read_records(Path(self.out)) if isinstance(record, StepRecord)]
        if find_spec("pandas") is None:
            return rows
        return import_module("pandas").DataFrame(rows)

    def plot(self) -> "Shown":
        """The loss by step, and the loss of evaluations, as a picture in a notebook."""
        return Shown(loss_curve(*self._curves()))

    def _repr_html_(self) -> str:
        return run_html(self, *self._curves())

    def _curves(self) -> tuple[list[Point], list[Point]]:
        records = list(read_records(Path(self.out)))
        steps = [(float(each.step), each.loss) for each in records if isinstance(each, StepRecord)]
        evaluations = [(float(each.step), each.loss) for each in records if isinstance(each, EvaluationRecord)]
        return steps, evaluations


class ShownAdvice(Advice):
    """The result of planning, as a table."""

    def _repr_html_(self) -> str:
        return advice_html(self)


class ShownCheck(CheckResult):
    """The verdicts of a check, as a table."""

    def _repr_html_(self) -> str:
        return check_html(self)


class Shown(str):
    """HTML that a notebook shows as it is meant."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)
