"""Turns the result of a search into advice: the chosen plan, why the others lost, what would make the job fit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from onecurve.describe.advice import Advice, RunnerUp
from onecurve.describe.changed_buffers import buffers_text
from onecurve.describe.cluster_shorthand import cluster_text
from onecurve.describe.costs import JobCosts
from onecurve.describe.estimate import Estimate
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.units import bytes_text, seconds_text
from onecurve.estimate.estimator import Estimator
from onecurve.estimate.tables import stored_bytes
from onecurve.search.branch_and_bound import Candidate, SearchResult, family
from onecurve.search.reason import AS_FAST, reason
from onecurve.search.simplicity import INDISTINGUISHABLE, why_less_simple

Search = Callable[[Estimator], SearchResult]

_FRONTIER_PLANS = 4
_CLUSTER_FACTORS = (1, 2, 4, 8, 16)
"""If nothing fits, clusters larger by these factors are tried."""
_ALLOW_BF16 = "allow it with --precision fp32,bf16 (its results differ from those of fp32)"
_SERVED_FRACTION = 0.9
"""Of the memory of a machine that only serves rows."""
_EXAMPLE_SERVER_BYTES = 512 << 30
"""Memory of a server, if the cluster does not say what its hosts have."""
DEVICES_PER_HOST = 8
"""Accelerators of a common host."""


def advise(script: str, estimator: Estimator, result: SearchResult, search: Search) -> Advice:
    """`search` is used again for larger clusters if no plan fits."""
    best = estimate_with_layouts(estimator, result.chosen.plan) if result.chosen is not None else None
    runners_up = [estimate_with_layouts(estimator, candidate.plan) for candidate in _others(result)]
    profile = next(iter(estimator.costs.traces.values())).small
    return Advice(
        script=script,
        cluster=cluster_text(estimator.cluster),
        machines=estimator.cluster,
        parameters=profile.parameters,
        global_batch=estimator.costs.global_batch,
        tokens=estimator.costs.tokens,
        best=best,
        choice=_choice(result),
        runners_up=tuple(RunnerUp(estimate, reason(estimate, best)) for estimate in runners_up),
        frontier=tuple(estimate_with_layouts(estimator, candidate.plan) for candidate in _slower(result)),
        hints=(
            *([] if best is not None else _what_would_fit(estimator, runners_up, search)),
            *_excluded(estimator.costs),
            *_served_rows(estimator, best),
        ),
    )


def _others(result: SearchResult) -> list[Candidate]:
    """Return the best plan of every other family, and the fastest plan if a simpler one of its family was chosen."""
    own_family = family(result.chosen.plan) if result.chosen is not None else None
    others = [candidate for axes, candidate in result.families.items() if axes != own_family]
    if result.best is not None and result.best != result.chosen and family(result.best.plan) == own_family:
        others.append(result.best)
    return sorted(others, key=lambda plan: (not plan.fits, plan.step if plan.fits else plan.memory_bytes))


def _slower(result: SearchResult) -> list[Candidate]:
    """Return the first plans of the frontier that are slower than the chosen one and better in something else."""
    chosen = result.chosen
    if chosen is None:
        return []
    slower = [
        candidate
        for candidate in result.frontier
        if candidate.step > chosen.step and not chosen.beats(candidate.step, candidate.memory_bytes, candidate.work)
    ]
    return slower[:_FRONTIER_PLANS]


def _choice(result: SearchResult) -> str:
    """Say why a plan was chosen that is noticeably slower than the fastest."""
    best, chosen = result.best, result.chosen
    if best is None or chosen is None or best.step > chosen.step * (1 - AS_FAST):
        return ""
    return (
        f"{best.plan} is predicted {1 - best.step / chosen.step:.1%} faster, but has "
        f"{why_less_simple(best.plan, chosen.plan)}; predictions do not tell plans apart that differ by less than "
        f"{INDISTINGUISHABLE:.0%}, so the simpler one was chosen"
    )


def estimate_with_layouts(estimator: Estimator, plan: Plan) -> Estimate:
    """Return the estimate of a plan that the search made, with the tensor layouts that apply/ needs, and with the
    placement of embedding tables."""
    if plan.mesh.tensor > 1:
        plan = replace(plan, layouts=dict(estimator.costs.layouts))
    placements = estimator.table_placements(plan)
    if placements and (plan.mesh.size > 1 or estimator.costs.has_row_servers):
        same = len(set(placements.values())) == 1
        plan = replace(plan, tables={"*": next(iter(placements.values()))} if same else dict(placements))
    return estimator.estimate(plan)


def faster_in_bf16(estimator: Estimator, best: Estimate | None, factor: float, search: Search) -> str:
    """Say what bf16, which was not allowed, would save; return nothing if it is less than `factor` times as fast.

    `estimator` estimates plans in bf16. `search` is used if no plan fits in the allowed precisions.
    """
    if best is None:
        fitting = search(estimator).chosen
        if fitting is None:
            return ""
        return f"it would fit in bf16, with {seconds_text(fitting.step)} per step under {fitting.plan}; {_ALLOW_BF16}"
    plan = replace(best.plan, precision="bf16")
    if plan.mesh.tensor > 1 and estimator.costs.traces["bf16"].split_in_two(plan.sequence) is None:
        return ""
    estimate = estimator.estimate(plan)
    speedup = best.step / estimate.step
    if speedup < factor or not estimate.fits:
        return ""
    return f"the same plan would be {speedup:.1f} times as fast, {seconds_text(estimate.step)} per step; {_ALLOW_BF16}"


def _served_rows(estimator: Estimator, best: Estimate | None) -> list[str]:
    """Say how much memory row servers need."""
    plan = best.plan if best is not None else Plan()
    served = [use for use in estimator.costs.tables if plan.table_placement(use.name) == "served"]
    if not served:
        return []
    names, total = ", ".join(use.name for use in served), sum(stored_bytes(use, plan) for use in served)
    text = f"row servers: the rows of {names} will take {bytes_text(total)}, {bytes_text(2 * total)} with two copies"
    hosts = estimator.cluster.groups[0]
    is_known = hosts.kind == "cpu"
    memory = hosts.device.memory * hosts.devices_per_host if is_known else _EXAMPLE_SERVER_BYTES
    count = max(2, math.ceil(2 * total / (_SERVED_FRACTION * memory)))
    return [f"{text}: {'' if is_known else 'for example '}{count} servers with {bytes_text(memory)} each"]


def _excluded(costs: JobCosts) -> list[str]:
    """Say why some kinds of plans were not considered."""
    notes = [f"not split along {axis!r}: {why}" for axis, why in costs.refused_axes.items()]
    if why := costs.refusal_of(Mesh(replicate=2)):
        notes.append(f"not split along 'replicate' and 'shard': {why}")
    elif why := costs.refusal_of(Mesh(pipeline=2, replicate=2)):
        notes.append(f"'pipeline' is not combined with 'replicate' and 'shard': {why}")
    if costs.has_batch_norm:
        notes.append("every step has one round: the results of batch norm depend on the number of rounds")
    elif names := costs.changed_buffers.names:
        notes.append(f"every step has one round: forward changes {buffers_text(names)} once per round")
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
        chosen = search(larger).chosen
        if chosen is not None:
            return estimate_with_layouts(larger, chosen.plan)
    return None
