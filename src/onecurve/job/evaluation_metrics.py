"""Loss and metrics of an evaluation, as vectors that are summed over batches and ranks."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.job.batch import MicroBatch
from onecurve.job.job import AnyMetric
from onecurve.job.metric import Metric
from onecurve.job.objective import LossObjective, weigh
from onecurve.job.scalar_form import REFUSED
from onecurve.job.weighted import add_weighted


@dataclass(frozen=True)
class EvaluationMetric:
    """One value of an evaluation: the loss or a metric of the job."""

    name: str
    sums: Callable[[Any, MicroBatch], Tensor]
    """A function (output, micro-batch) → the vector that this batch adds to the total."""
    finish: Callable[[Tensor], float]
    """A function from the total to the value."""

    @property
    def is_mean(self) -> bool:
        """True if the sums are a sum and its count."""
        return self.finish is _mean


def evaluation_metrics_of(objective: LossObjective, metrics: Mapping[str, AnyMetric]) -> list[EvaluationMetric]:
    """The loss, followed by the job's metrics."""

    def loss(output: Any, micro: MicroBatch) -> Tensor:
        weighted = objective(output, micro)
        return _sum_and_count(weighted.sum, weighted.count)

    def mean(sum_and_count: Tensor) -> float:
        if sum_and_count[1].item() == REFUSED:
            raise OnecurveError(objective.refusal)
        return _mean(sum_and_count)

    return [EvaluationMetric("loss", loss, mean), *metrics_of(metrics)]


def metrics_of(metrics: Mapping[str, AnyMetric]) -> list[EvaluationMetric]:
    """The job's metrics alone."""
    return [_evaluation_metric(name, metric) for name, metric in metrics.items()]


def _evaluation_metric(name: str, metric: AnyMetric) -> EvaluationMetric:
    function = metric.sums if isinstance(metric, Metric) else metric

    def sums(output: Any, micro: MicroBatch) -> Tensor:
        try:
            value = function(output, micro.target)
        except OnecurveError:
            raise
        except Exception as error:
            raise UserCodeError(f"metric {name!r}: it raised {type(error).__name__}: {error}") from error
        if isinstance(metric, Metric):
            return torch.as_tensor(value).detach().double()
        if isinstance(value, Tensor) and value.dim() == 0:
            raise OnecurveError(
                f"metric {name!r}: it returned a scalar, which cannot be summed over batches and ranks; return "
                "onecurve.Weighted(sum, count) or one value per sample"
            )
        weighted = weigh(value, micro.samples, f"metric {name!r}")
        return _sum_and_count(weighted.sum, weighted.count)

    return EvaluationMetric(name, sums, metric.finish if isinstance(metric, Metric) else _mean)


def _sum_and_count(total: Tensor | float, count: Tensor | float) -> Tensor:
    total = torch.as_tensor(total)
    sums = torch.zeros(2, dtype=torch.float64, device=total.device)
    add_weighted(sums, total, count)
    return sums


def _mean(sum_and_count: Tensor) -> float:
    total, count = sum_and_count.tolist()
    return total / count if count else math.nan
