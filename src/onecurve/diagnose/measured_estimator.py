"""Predictions for other plans, corrected by what a run has measured under its own plan."""

from collections.abc import Mapping

from onecurve.describe.diagnosis import StepTimes
from onecurve.describe.plan import Plan
from onecurve.estimate.estimator import Estimator

_GROUPS = {
    "compute": ("forward", "backward", "recompute", "host", "other"),
    "update": ("update",),
    "replicate": ("replicate",),
    "shard": ("shard",),
    "tensor": ("tensor",),
    "batch_norm": ("batch_norm",),
    "bubble": ("bubble", "pipeline"),
    "tables": ("tables",),
}
"""Predicted causes that a run measures together. A plan cannot change how long the data takes."""
_COMMUNICATION = ("replicate", "shard", "tensor")
_LEAST_SHARE = 0.02
"""Times below this part of a step are too short to correct anything."""
_LARGEST_FACTOR = 1000.0
_MAX_SURPRISE = 2.0
"""If computing takes this many times as long as predicted, the prediction does not explain it."""


class MeasuredEstimator(Estimator):
    """An estimator whose predictions for the plan of a run are what the run has measured."""

    def __init__(self, estimator: Estimator, plan: Plan, times: StepTimes) -> None:
        super().__init__(estimator.cluster, estimator.costs, estimator.constants)
        predicted, measured = estimator.seconds(plan), measured_groups(times)
        self.predicted = predicted
        """What had been predicted for the run's plan."""
        known = {}
        for group, causes in _GROUPS.items():
            before = sum(predicted.get(cause, 0.0) for cause in causes)
            after = measured.get(group, 0.0)
            if max(before, after) > _LEAST_SHARE * times.total and before > 0 and after > 0:
                known[group] = min(_LARGEST_FACTOR, after / before)
        # A link that is slower than assumed is so for every axis that uses it.
        link = max((known[group] for group in _COMMUNICATION if group in known), default=1.0)
        assumed = {**dict.fromkeys(_GROUPS, 1.0), **dict.fromkeys((*_COMMUNICATION, "batch_norm"), link)}
        factors = {**assumed, **known}
        self._factors = {cause: factors[group] for group, causes in _GROUPS.items() for cause in causes}
        if "bubble" not in known:
            self._factors |= {"bubble": factors["compute"], "pipeline": link}
        self._plan, self._compute = plan, measured["compute"]
        self._explains_compute = self._factors["forward"] < _MAX_SURPRISE

    def seconds(self, plan: Plan) -> dict[str, float]:
        terms = super().seconds(plan)
        terms = {cause: self._factors.get(cause, 1.0) * value for cause, value in terms.items() if cause != "data"}
        if self._explains_compute:
            return terms
        others = {cause: value for cause, value in terms.items() if cause not in _GROUPS["compute"]}
        return {**others, "forward": self._compute_by_samples(plan)}

    def compute_lower_bound(self, plan: Plan) -> float:
        if self._explains_compute:
            return self._factors["forward"] * super().compute_lower_bound(plan)
        return self._compute_by_samples(plan)

    def _compute_by_samples(self, plan: Plan) -> float:
        """The measured time, as if every sample took the same in every plan: the predictor does not know better."""
        return self._compute * _samples_per_rank(plan) / _samples_per_rank(self._plan)


def _samples_per_rank(plan: Plan) -> float:
    """Samples of a step that a rank computes; of a split model, its part of them."""
    return plan.rounds * max(plan.shares) / (plan.mesh.tensor * plan.mesh.pipeline)


def measured_groups(times: StepTimes) -> dict[str, float]:
    """What a run has measured, in the groups of the predictor's causes."""
    known = {"data", "update", "evaluation", "checkpoint"}
    return {
        "compute": sum(value for cause, value in times.own.items() if cause not in known),
        "update": times.own.get("update", 0.0),
        "bubble": times.bubble,
        **{cause: times.communication.get(cause, 0.0) for cause in (*_COMMUNICATION, "batch_norm", "tables")},
    }


def predicted_groups(seconds: Mapping[str, float]) -> dict[str, float]:
    """A prediction in the same groups."""
    return {group: sum(seconds.get(cause, 0.0) for cause in causes) for group, causes in _GROUPS.items()}
