"""onecurve plan: how should this job be split, how long, how much, and why not otherwise? Needs no accelerator."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onecurve.data.training_data import open_data
from onecurve.describe.advice import Advice, RunnerUp
from onecurve.describe.cluster import Cluster
from onecurve.describe.cluster_shorthand import cluster_text
from onecurve.describe.costs import Costs
from onecurve.describe.errors import OnecurveError
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.units import bytes_text, seconds_text
from onecurve.device.device import local_device
from onecurve.job.script import load_job
from onecurve.planner.clusters import HERE, Say, find_cluster
from onecurve.planner.job_costs import costs_of
from onecurve.planner.plan_choice import allowed
from onecurve.planner.timing import timings
from onecurve.planner.traced_model import TracedModel
from onecurve.predict.estimator import Estimator
from onecurve.report.advice import plan_file
from onecurve.runtime.manual import refuse_manual_backward
from onecurve.search.branch_and_bound import BranchAndBound, Candidate, SearchResult
from onecurve.search.reason import reason
from onecurve.search.space import Space
from onecurve.verbs.probe import probe_this_host

_RUNNERS_UP = 6
_ON_THE_FRONTIER = 4
_GREATER = (1, 2, 4, 8, 16)
_WHOLE_HOST = 8
"""Accelerators, as most have."""
_WORTH_IT = 1.2
"""Times as fast."""


def plan(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    cluster: str | Cluster = "here",
    precision: Sequence[Precision] = ("fp32",),
    price: float | None = None,
    out: str | Path | None = None,
    say: Say = lambda _: None,
) -> Advice:
    """Plan the job of a script for a cluster: `oc.plan("train.py", cluster="2x8xH100", precision=["bf16"])`.

    `cluster`: `here`, a short name as above, or a cluster.toml that `onecurve probe` wrote. `precision`: those that the
    numbers may be computed in. `price`: of one device for an hour, or of a CPU host. `out`: a plan.toml to write.
    """
    precision = allowed(precision)
    say("reading the job")
    job = load_job(Path(script), arguments)
    refuse_manual_backward(job, f"{script}: it cannot be planned")
    data = open_data(job)
    machines = priced(find_cluster(cluster, probe_this_host, say), price)
    say("tracing the model")
    traced = TracedModel(job, data)
    beside = _beside(machines, precision)
    together = machines.ranks_per_host if machines.device_kind == "cpu" else max(_WHOLE_HOST, machines.ranks_per_host)
    costs = costs_of(traced, [*precision, *beside], together)
    if cluster == HERE:
        say("timing the model on this device")
        costs = replace(costs, timings=timings(job, data, local_device(0), machines, costs, [*precision, *beside]))
    else:  # who knows how fast those read
        costs = replace(costs, read_seconds_per_sample=0.0)
    say("searching")
    estimator = Estimator(machines, _only(costs, precision))
    advice = advise(str(script), estimator, BranchAndBound(Space(estimator)).run())
    if beside:
        advice = replace(advice, hints=(*advice.hints, *_narrower(Estimator(machines, _only(costs, beside)), advice)))
    if out is not None and advice.best is not None:
        Path(out).write_text(plan_file(advice), encoding="utf-8")
    return advice


def priced(cluster: Cluster, price: float | None) -> Cluster:
    if price is None:
        return cluster
    if not price > 0:
        raise OnecurveError(f"price = {price}; a number above 0 is needed: of one device for an hour, or of a CPU host")
    return replace(cluster, groups=tuple(replace(group, price_per_hour=price) for group in cluster.groups))


def advise(script: str, estimator: Estimator, result: SearchResult) -> Advice:
    best = _estimate(estimator, result.best.plan) if result.best is not None else None
    others = [each for each in result.families.values() if each != result.best]
    others.sort(key=lambda each: (not each.fits, each.step if each.fits else each.memory_bytes))
    runners_up = [_estimate(estimator, each.plan) for each in others[:_RUNNERS_UP]]
    whole = next(iter(estimator.costs.traces.values())).small
    return Advice(
        script,
        cluster_text(estimator.cluster),
        whole.parameters,
        estimator.costs.global_batch,
        best,
        tuple(RunnerUp(each, reason(each, best)) for each in runners_up),
        tuple(_estimate(estimator, each.plan) for each in _alternatives(result)),
        (*_hints(estimator, best, runners_up), *_refusals(estimator.costs)),
    )


def _beside(cluster: Cluster, precision: Sequence[Precision]) -> list[Precision]:
    """What was not allowed, but would be faster: the user should know."""
    device = cluster.groups[0].device
    faster = "bf16" in device.flops and device.speed("bf16") > _WORTH_IT * device.speed("fp32")
    return ["bf16"] if faster and "bf16" not in precision else []


def _only(costs: Costs, precision: Sequence[Precision]) -> Costs:
    traces = {name: trace for name, trace in costs.traces.items() if name in precision}
    return replace(costs, traces=traces, timings=tuple(each for each in costs.timings if each.precision in precision))


def _narrower(estimator: Estimator, advice: Advice) -> list[str]:
    found = BranchAndBound(Space(estimator)).run().best
    if found is None or (advice.best is not None and found.step * _WORTH_IT > advice.best.step):
        return []
    words = "a step would take" if advice.best is not None else "it would fit, and a step take"
    return [
        f"in bf16, which computes other numbers than fp32, {words} {seconds_text(found.step)} under {found.plan}: "
        "allow it with --precision fp32,bf16"
    ]


def _estimate(estimator: Estimator, plan: Plan) -> Estimate:
    return estimator.estimate(with_layouts(plan, estimator.costs))


def with_layouts(plan: Plan, costs: Costs) -> Plan:
    """As apply/ needs it: how parameters lie along its tensor axis."""
    return replace(plan, layouts=dict(costs.layouts)) if plan.mesh.tensor > 1 else plan


def _alternatives(result: SearchResult) -> list[Candidate]:
    """On the frontier, beside the best."""
    return result.frontier[1 : 1 + _ON_THE_FRONTIER]


def _refusals(costs: Costs) -> list[str]:
    """Why some plans were not looked at."""
    found = [f"not split along {axis!r}: {why}" for axis, why in costs.refused_axes.items()]
    if costs.single_round:
        found.append("every step has one round: batch norm's numbers depend on how many there are")
    if costs.needs_full_parameters:
        found.append("nothing is cut or sharded: the optimizer may need whole parameters")
    return found


def _hints(estimator: Estimator, best: Estimate | None, others: Sequence[Estimate]) -> list[str]:
    if best is not None:
        return []
    closest = min(others, key=lambda each: each.used)
    memory = estimator.cluster.memory
    hints = [
        f"it needs {bytes_text(closest.used)} per rank at least (under {closest.plan}), "
        f"{bytes_text(closest.used - closest.available)} more than there is"
    ]
    more = _more_devices(estimator)
    if more is not None:
        hints.append(f"it would fit on {more.devices} devices of this kind, as {more.plan}")
    hints.append(f"it would fit on devices of {bytes_text(closest.used / closest.available * memory)} or more")
    return hints


def _more_devices(estimator: Estimator) -> Estimate | None:
    """Whole hosts of them, twice as many each time."""
    for times in _GREATER:
        groups = tuple(
            replace(group, count=group.count * times, devices_per_host=max(_WHOLE_HOST, group.devices_per_host))
            if group.kind != "cpu"
            else replace(group, count=group.count * times)
            for group in estimator.cluster.groups
        )
        larger = Estimator(replace(estimator.cluster, groups=groups), estimator.costs)
        found = BranchAndBound(Space(larger)).run().best
        if found is not None:
            return _estimate(larger, found.plan)
    return None
