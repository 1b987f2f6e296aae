"""When and on what a job is evaluated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onecurve.describe.errors import OnecurveError
from onecurve.job.cadence import Every, check_every, check_positive_integer
from onecurve.job.dataset import Dataset


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the loss and the job's metrics on a second dataset, using each sample exactly once.

    An evaluation runs every `every` steps and once at the end of training. The weights of the best one are written to
    `best.safetensors` in the run's folder. A value that is not finite is never the best, and counts as no improvement.

    Args:
        data: A callable that builds the evaluation dataset (map-style, with samples `(input, target)`).
        every: Number of steps between evaluations, or `"epoch"`: after the step that completes an epoch.
        watch: The value that decides which evaluation is the best: `"loss"` or the name of one of the job's metrics.
            Default: `"loss"`.
        better: `"lower"` if smaller values of `watch` are better, `"higher"` if larger ones are. Default: `"lower"`.
        patience: Stop training after this many evaluations in a row without an improvement. Default: None, train to
            the last step.
        test: A callable that builds a third dataset, on which the weights of the last step are evaluated once, at the
            end of training. Default: None.

    Example::

        oc.Evaluate(lambda: MyDataset(train=False), every=500, watch="accuracy", better="higher", patience=5)
    """

    data: Callable[[], Dataset]
    every: Every
    watch: str = "loss"
    better: Literal["lower", "higher"] = "lower"
    patience: int | None = None
    test: Callable[[], Dataset] | None = None

    def __post_init__(self) -> None:
        check_every("Evaluate", "every", self.every)
        if not callable(self.data):
            raise OnecurveError(
                f"Evaluate: data must be a callable that builds the dataset, for example data=lambda: MyDataset(); "
                f"got {type(self.data).__name__}"
            )
        if self.test is not None and not callable(self.test):
            raise OnecurveError(
                "Evaluate: test must be a callable that builds the dataset, for example test=lambda: MyDataset(); got "
                f"{type(self.test).__name__}"
            )
        if self.better not in ("lower", "higher"):
            raise OnecurveError(f"Evaluate: better must be 'lower' or 'higher', got {self.better!r}")
        if self.patience is not None:
            check_positive_integer("Evaluate", "patience", self.patience)
