"""Turns the result of a search into advice: the best plan, why the others lost, what would make the job fit."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from onecurve.describe.advice import Advice, RunnerUp
from onecurve.describe.cluster_shorthand import cluster_text
from onecurve.describe.costs import JobCosts
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.describe.units import bytes_text, seconds_text
from onecurve.predict.estimator import Estimator
from onecurve.search.branch_and_bound import Candidate, SearchResult
from onecurve.search.reason import reason

Search = Callable[[Estimator], SearchResult]

_RUNNERS_UP = 6
_FRONTIER_PLANS = 4
_CLUSTER_FACTORS = (1, 2, 4, 8, 16)
"""If nothing fits, clusters larger by these factors are tried."""
DEVICES_PER_HOST = 8
"""Accelerators of a common host."""


def advise(script: str, estimator: Estimator, result: SearchResult, search: Search) -> Advice:
    """`search` is used again for larger clusters if no plan fits."""
    best = estimate_with_layouts(estimator, result.best.plan) if result.best is not None else None
    others = [candidate for candidate in result.families.values() if candidate != result.best]
    others.sort(key=lambda plan: (not plan.fits, plan.step if plan.fits else plan.memory_bytes))
    runners_up = [estimate_with_layouts(estimator, candidate.plan) for candidate in others[:_RUNNERS_UP]]
    profile = next(iter(estimator.costs.traces.values())).small
    slower = result.frontier[1 : 1 + _FRONTIER_PLANS]
    return Advice(
        script=script,
        cluster=cluster_text(estimator.cluster),
        parameters=profile.parameters,
        global_batch=estimator.costs.global_batch,
        best=best,
        runners_up=tuple(RunnerUp(estimate, reason(estimate, best)) for estimate in runners_up),
        frontier=tuple(estimate_with_layouts(estimator, candidate.plan) for candidate in slower),
        hints=(
            *([] if best is not None else _what_would_fit(estimator, runners_up, search)),
            *_excluded(estimator.costs),
        ),
    )


def estimate_with_layouts(estimator: Estimator, plan: Plan) -> Estimate:
    """Return the estimate of a plan that the search made, with the tensor layouts that apply/ needs."""
    if plan.mesh.tensor > 1:
        plan = replace(plan, layouts=dict(estimator.costs.layouts))
    return estimator.estimate(plan)


def hint_at_faster_precision(faster: Candidate | None, best: Estimate | None, factor: float) -> list[str]:
    """Mention the best plan in a precision that was not allowed, if it is `factor` times as fast."""
    if faster is None or (best is not None and faster.step * factor > best.step):
        return []
    words = "a step would take" if best is not None else "it would fit, and a step would take"
    return [
        f"in bf16, whose results differ from fp32's, {words} {seconds_text(faster.step)} under {faster.plan}: "
        "allow it with --precision fp32,bf16"
    ]


def _excluded(costs: JobCosts) -> list[str]:
    """Say why some kinds of plans were not considered."""
    notes = [f"not split along {axis!r}: {why}" for axis, why in costs.refused_axes.items()]
    if costs.single_round:
        notes.append("every step has one round: the results of batch norm depend on the number of rounds")
    if costs.needs_full_parameters:
        notes.append("no parameter is split or sharded: the optimizer may need full parameters")
    return notes


def _what_would_fit(estimator: Estimator, others: Sequence[Estimate], search: Search) -> list[str]:
    closest = min(others, key=lambda estimate: estimate.memory_bytes)
    hints = [
        f"it needs at least {bytes_text(closest.memory_bytes)} per rank (under {closest.plan}), "
        f"{bytes_text(closest.memory_bytes - closest.available_bytes)} more than there is"
    ]
    larger = _larger_cluster(estimator, search)
    if larger is not None:
        hints.append(f"it would fit on {larger.devices} devices of this kind, as {larger.plan}")
    needed = closest.memory_bytes / closest.available_bytes * estimator.cluster.memory
    hints.append(f"it would fit on devices with at least {bytes_text(needed)}")
    return hints


def _larger_cluster(estimator: Estimator, search: Search) -> Estimate | None:
    """Return the best plan on the smallest cluster that fits: full hosts, twice as many each time."""
    for factor in _CLUSTER_FACTORS:
        groups = tuple(
            replace(group, count=group.count * factor, devices_per_host=max(DEVICES_PER_HOST, group.devices_per_host))
            if group.kind != "cpu"
            else replace(group, count=group.count * factor)
            for group in estimator.cluster.groups
        )
        larger = Estimator(replace(estimator.cluster, groups=groups), estimator.costs)
        best = search(larger).best
        if best is not None:
            return estimate_with_layouts(larger, best.plan)
    return None
