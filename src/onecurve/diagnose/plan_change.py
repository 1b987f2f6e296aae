"""Findings that another plan would mend: micro-batches, pipeline, communication."""

from onecurve.describe.diagnosis import Cause, Finding, Gain, StepTimes
from onecurve.describe.plan import Plan
from onecurve.describe.units import counted, seconds_text
from onecurve.diagnose.measured_estimator import MeasuredEstimator, measured_groups, predicted_groups
from onecurve.search.branch_and_bound import BranchAndBound
from onecurve.search.space import Space

_LEAST_GAIN = 0.10
"""A predicted gain below this is within the error of predictions."""
_SPREAD = 0.25
_LARGE_BUBBLE = 0.15
"""Above this part of a step, waiting of pipeline stages is named if another plan has less of it."""
_CAUSES: dict[str, Cause] = {"bubble": "pipeline", "compute": "micro_batch", "batch_norm": "batch_norm"}
"""What has limited the run, by what another plan makes shorter; anything else is communication."""


def plan_change(
    estimator: MeasuredEstimator, plan: Plan, times: StepTimes, handing_over: float = 0.0
) -> Finding | None:
    """A plan that is predicted to be faster than the run's own. `handing_over`: seconds of a step in which the rank
    waits for data that is there, which grow with the rounds."""
    found = BranchAndBound(Space(estimator)).run().chosen
    if found is None or str(found.plan) == str(plan):
        return None
    now, then = measured_groups(times), predicted_groups(estimator.seconds(found.plan))
    own = predicted_groups(estimator.seconds(plan))
    before = sum(now.values())
    # What the predictor does not explain of this run stays, unless the other plan does not have that axis.
    unexplained = {group: now[group] - own.get(group, 0.0) for group in now if _has(found.plan, group)}
    after = sum(then.values()) + sum(value for value in unexplained.values() if value > 0)
    # What a plan does not change stays: waiting for data and for slow ranks, checkpoints, evaluations.
    handed_over = handing_over * (1 - found.plan.rounds / plan.rounds)
    expected = (before - after + handed_over) / times.total
    if expected < _LEAST_GAIN:
        return None
    shortened = max(now, key=lambda group: now[group] - then.get(group, 0.0))
    if times.bubble > _LARGE_BUBBLE * times.total and _waits_less(found.plan, plan):
        shortened = "bubble"
    return Finding(
        cause=(cause := _cause(shortened, plan, found.plan)),
        limit=_limit(cause, shortened, plan, times),
        change=f'--plan "{found.plan}" instead of "{plan}"{_on_fewer_hosts(estimator, plan, found.plan)}',
        gain=Gain(expected * (1 - _SPREAD), expected, min(0.99, expected * (1 + _SPREAD))),
        plan=str(found.plan),
    )


def _waits_less(plan: Plan, before: Plan) -> bool:
    """True if a plan has fewer pipeline stages to wait for, another schedule, or more rounds to fill it."""
    fewer = plan.mesh.pipeline < before.mesh.pipeline
    return fewer or plan.schedule != before.schedule or plan.rounds > before.rounds


def _has(plan: Plan, group: str) -> bool:
    """True if a plan spends time on a group of causes."""
    if group == "batch_norm":
        return plan.mesh.data > 1
    axis = "pipeline" if group == "bubble" else group
    return plan.mesh.degrees.get(axis, 2) > 1


def _on_fewer_hosts(estimator: MeasuredEstimator, plan: Plan, other: Plan) -> str:
    """Say on how many hosts a plan is meant to run, if these are fewer than before."""
    before, after = (sum(count for count, _ in estimator.cluster.placement(each.mesh.size)) for each in (plan, other))
    return f", on {counted(after, 'host')} instead of {before}" if after < before else ""


def _cause(shortened: str, plan: Plan, other: Plan) -> Cause:
    if shortened == "compute" and max(other.shares) < 2 * max(plan.shares):
        return "plan"
    return _CAUSES.get(shortened, "communication")


def _limit(cause: Cause, shortened: str, plan: Plan, times: StepTimes) -> str:
    if cause == "plan":
        return f"the plan: {plan} does not use these machines as well as another one would"
    if shortened == "bubble":
        share = times.bubble / times.total
        return (
            f"pipeline stages wait for each other: {share:.0%} of the time ({seconds_text(times.bubble)} of "
            f"{seconds_text(times.total)}), with {plan.stage_count} stages and {plan.rounds} rounds per step"
        )
    if shortened == "compute":
        return (
            f"the device computes inefficiently: {counted(plan.rounds, 'round')} of "
            f"{counted(max(plan.shares), 'sample')} per step"
        )
    spent = times.communication.get(shortened, 0.0)
    if shortened == "batch_norm":
        return (
            f"synchronized batch norm waits for the statistics of other ranks: {spent / times.total:.0%} of the time "
            f"({seconds_text(spent)} of {seconds_text(times.total)})"
        )
    return (
        f"communication along the axis {shortened!r} is not hidden by computing: {spent / times.total:.0%} of the time "
        f"({seconds_text(spent)} of {seconds_text(times.total)})"
    )
