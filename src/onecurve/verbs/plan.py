"""onecurve plan: how should this job be split, how long, how much, and why not otherwise? Needs no accelerator."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onecurve.describe.advice import Advice, RunnerUp
from onecurve.describe.cluster import Cluster
from onecurve.describe.costs import Costs
from onecurve.describe.errors import OnecurveError
from onecurve.describe.estimate import Estimate
from onecurve.describe.fleet import cluster_text
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.units import bytes_text, seconds_text
from onecurve.device.device import local_device
from onecurve.job.script import load_job
from onecurve.predict.forecast import Forecast
from onecurve.report.plan import plan_file
from onecurve.search.best import Found, Result, Search
from onecurve.search.reason import reason
from onecurve.search.space import Space
from onecurve.verbs.choice import allowed
from onecurve.verbs.costs import costs_of
from onecurve.verbs.data import open_data
from onecurve.verbs.kept import refuse_kept_backward
from onecurve.verbs.machines import HERE, Say, find_cluster
from onecurve.verbs.timing import timings
from onecurve.verbs.tracing import Traceable

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
    refuse_kept_backward(job, f"{script}: it cannot be planned")
    data = open_data(job)
    machines = priced(find_cluster(cluster, say), price)
    say("tracing the model")
    traceable = Traceable(job, data)
    beside = _beside(machines, precision)
    together = machines.neighbours if machines.device == "cpu" else max(_WHOLE_HOST, machines.neighbours)
    costs = costs_of(traceable, [*precision, *beside], together)
    if cluster == HERE:
        say("timing the model on this device")
        costs = replace(costs, timings=timings(job, data, local_device(0), machines, costs, [*precision, *beside]))
    else:  # who knows how fast those read
        costs = replace(costs, reading=0.0)
    say("searching")
    forecast = Forecast(machines, _only(costs, precision))
    advice = advise(str(script), forecast, Search(Space(forecast)).run())
    if beside:
        advice = replace(advice, hints=(*advice.hints, *_narrower(Forecast(machines, _only(costs, beside)), advice)))
    if out is not None and advice.best is not None:
        Path(out).write_text(plan_file(advice), encoding="utf-8")
    return advice


def priced(cluster: Cluster, price: float | None) -> Cluster:
    if price is None:
        return cluster
    if not price > 0:
        raise OnecurveError(f"price = {price}; a number above 0 is needed: of one device for an hour, or of a CPU host")
    return replace(cluster, groups=tuple(replace(group, price=price) for group in cluster.groups))


def advise(script: str, forecast: Forecast, result: Result) -> Advice:
    best = _estimate(forecast, result.best.plan) if result.best is not None else None
    others = [each for each in result.families.values() if each != result.best]
    others.sort(key=lambda each: (not each.fits, each.step if each.fits else each.used))
    runners_up = [_estimate(forecast, each.plan) for each in others[:_RUNNERS_UP]]
    whole = next(iter(forecast.costs.traces.values())).few
    return Advice(
        script,
        cluster_text(forecast.cluster),
        whole.parameters,
        forecast.costs.global_batch,
        best,
        tuple(RunnerUp(each, reason(each, best)) for each in runners_up),
        tuple(_estimate(forecast, each.plan) for each in _alternatives(result)),
        (*_hints(forecast, best, runners_up), *_refusals(forecast.costs)),
    )


def _beside(cluster: Cluster, precision: Sequence[Precision]) -> list[Precision]:
    """What was not allowed, but would be faster: the user should know."""
    device = cluster.groups[0].device
    faster = "bf16" in device.flops and device.speed("bf16") > _WORTH_IT * device.speed("fp32")
    return ["bf16"] if faster and "bf16" not in precision else []


def _only(costs: Costs, precision: Sequence[Precision]) -> Costs:
    traces = {name: trace for name, trace in costs.traces.items() if name in precision}
    return replace(costs, traces=traces, timings=tuple(each for each in costs.timings if each.precision in precision))


def _narrower(forecast: Forecast, advice: Advice) -> list[str]:
    found = Search(Space(forecast)).run().best
    if found is None or (advice.best is not None and found.step * _WORTH_IT > advice.best.step):
        return []
    words = "a step would take" if advice.best is not None else "it would fit, and a step take"
    return [
        f"in bf16, which computes other numbers than fp32, {words} {seconds_text(found.step)} under {found.plan}: "
        "allow it with --precision fp32,bf16"
    ]


def _estimate(forecast: Forecast, plan: Plan) -> Estimate:
    return forecast.estimate(with_layouts(plan, forecast.costs))


def with_layouts(plan: Plan, costs: Costs) -> Plan:
    """As apply/ needs it: how parameters lie along its tensor axis."""
    return replace(plan, layouts=dict(costs.layouts)) if plan.mesh.tensor > 1 else plan


def _alternatives(result: Result) -> list[Found]:
    """On the frontier, beside the best."""
    return result.frontier[1 : 1 + _ON_THE_FRONTIER]


def _refusals(costs: Costs) -> list[str]:
    """Why some plans were not looked at."""
    found = [f"not split along {axis!r}: {why}" for axis, why in costs.refused.items()]
    if costs.whole_rounds:
        found.append("every step has one round: batch norm's numbers depend on how many there are")
    if costs.whole_parameters:
        found.append("nothing is cut or sharded: the optimizer may need whole parameters")
    return found


def _hints(forecast: Forecast, best: Estimate | None, others: Sequence[Estimate]) -> list[str]:
    if best is not None:
        return []
    closest = min(others, key=lambda each: each.used)
    memory = forecast.cluster.memory
    hints = [
        f"it needs {bytes_text(closest.used)} per rank at least (under {closest.plan}), "
        f"{bytes_text(closest.used - closest.available)} more than there is"
    ]
    more = _more_devices(forecast)
    if more is not None:
        hints.append(f"it would fit on {more.devices} devices of this kind, as {more.plan}")
    hints.append(f"it would fit on devices of {bytes_text(closest.used / closest.available * memory)} or more")
    return hints


def _more_devices(forecast: Forecast) -> Estimate | None:
    """Whole hosts of them, twice as many each time."""
    for times in _GREATER:
        groups = tuple(
            replace(group, count=group.count * times, devices=max(_WHOLE_HOST, group.devices))
            if group.kind != "cpu"
            else replace(group, count=group.count * times)
            for group in forecast.cluster.groups
        )
        larger = Forecast(replace(forecast.cluster, groups=groups), forecast.costs)
        found = Search(Space(larger)).run().best
        if found is not None:
            return _estimate(larger, found.plan)
    return None
