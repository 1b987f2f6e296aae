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
from onecurve.describe.units import bytes_text
from onecurve.device.device import local_device
from onecurve.job.script import load_job
from onecurve.predict.forecast import Forecast
from onecurve.report.plan import plan_file
from onecurve.search.best import Found, Result, Search
from onecurve.search.reason import reason
from onecurve.search.space import Space
from onecurve.verbs.costs import costs_of
from onecurve.verbs.data import open_data
from onecurve.verbs.machines import HERE, Say, find_cluster
from onecurve.verbs.timing import timings
from onecurve.verbs.tracing import Traceable

_RUNNERS_UP = 6
_ON_THE_FRONTIER = 4
_GREATER = (2, 4, 8, 16)


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
    numbers may be computed in. `price`: of one device for an hour. `out`: a plan.toml to write.
    """
    say("reading the job")
    job = load_job(Path(script), arguments)
    data = open_data(job)
    machines = priced(find_cluster(cluster, say), price)
    say("tracing the model")
    traceable = Traceable(job, data)
    most = max(group.cores if group.kind == "cpu" else group.devices for group in machines.groups)
    costs = costs_of(traceable, precision, most)
    if cluster == HERE:
        say("timing the model on this device")
        costs = replace(costs, timings=timings(job, data, local_device(0), machines, precision))
    say("searching")
    forecast = Forecast(machines, costs)
    result = Search(Space(forecast)).run()
    advice = advise(str(script), forecast, result)
    if out is not None and advice.best is not None:
        Path(out).write_text(plan_file(advice), encoding="utf-8")
    return advice


def priced(cluster: Cluster, price: float | None) -> Cluster:
    if price is None:
        return cluster
    if not price > 0:
        raise OnecurveError(f"price = {price}; a number above 0 is needed: of one device for an hour")
    return Cluster(tuple(replace(group, price=price) for group in cluster.groups))


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
        tuple(_hints(forecast, best, runners_up)),
    )


def _estimate(forecast: Forecast, plan: Plan) -> Estimate:
    return forecast.estimate(with_layouts(plan, forecast.costs))


def with_layouts(plan: Plan, costs: Costs) -> Plan:
    """As apply/ needs it: how parameters lie along its tensor axis."""
    return replace(plan, layouts=dict(costs.layouts)) if plan.mesh.tensor > 1 else plan


def _alternatives(result: Result) -> list[Found]:
    """On the frontier, beside the best."""
    return result.frontier[1 : 1 + _ON_THE_FRONTIER]


def _hints(forecast: Forecast, best: Estimate | None, others: Sequence[Estimate]) -> list[str]:
    if best is not None:
        return []
    closest = min(others, key=lambda each: each.used)
    hints = [
        f"it needs {bytes_text(closest.used)} per rank at least (under {closest.plan}), "
        f"{bytes_text(closest.used - closest.available)} more than there is"
    ]
    more = _more_devices(forecast)
    if more is not None:
        hints.append(f"it would fit on {more.devices} devices of this kind: {more.plan}")
    hints.append(f"or on devices of {bytes_text(closest.used)} or more")
    return hints


def _more_devices(forecast: Forecast) -> Estimate | None:
    for times in _GREATER:
        groups = tuple(replace(group, count=group.count * times) for group in forecast.cluster.groups)
        larger = Forecast(Cluster(groups), forecast.costs, forecast.constants)
        found = Search(Space(larger)).run().best
        if found is not None:
            return _estimate(larger, found.plan)
    return None
