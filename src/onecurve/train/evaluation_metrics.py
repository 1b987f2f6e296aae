"""Loss and metrics of an evaluation as vectors that can be added over batches and ranks."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.job.batch import MicroBatch, Objective
from onecurve.job.job import AnyMetric
from onecurve.job.metric import Metric
from onecurve.job.objective import weigh


@dataclass(frozen=True)
class EvaluationMetric:
    """One number of an evaluation."""

    name: str
    sums: Callable[[Any, MicroBatch], Tensor]
    finish: Callable[[Tensor], float]


def measures_of(objective: Objective, metrics: Mapping[str, AnyMetric]) -> list[EvaluationMetric]:
    """The loss first, then the job's metrics."""

    def loss(output: Any, micro: MicroBatch) -> Tensor:
        weighted = objective(output, micro)
        return _pair(weighted.sum, weighted.count)

    return [EvaluationMetric("loss", loss, _mean), *(_measure(name, metric) for name, metric in metrics.items())]


def _measure(name: str, metric: AnyMetric) -> EvaluationMetric:
    function = metric.sums if isinstance(metric, Metric) else metric

    def sums(output: Any, micro: MicroBatch) -> Tensor:
        try:
            value = function(output, micro.target)
        except Exception as error:
            raise UserCodeError(f"metric {name!r}: it raised {type(error).__name__}: {error}") from error
        if isinstance(metric, Metric):
            return torch.as_tensor(value).detach().double()
        if isinstance(value, Tensor) and value.dim() == 0:
            raise OnecurveError(
                f"metric {name!r}: it returned a scalar, whose parts do not add up; return "
                "onecurve.Weighted(sum, count) or one value per sample"
            )
        weighted = weigh(value, micro.samples, f"metric {name!r}")
        return _pair(weighted.sum, weighted.count)

    return EvaluationMetric(name, sums, metric.finish if isinstance(metric, Metric) else _mean)


def _pair(total: Tensor | float, count: Tensor | float) -> Tensor:
    total = torch.as_tensor(total).detach().double()
    return torch.stack([total, torch.as_tensor(count).to(total)])


def _mean(pair: Tensor) -> float:
    total, count = pair.tolist()
    return total / count if count else math.nan
