"""onecurve plan: how should this job be split, how long will it take, what will it cost? Needs no accelerator."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from onecurve.data.training_data import open_data
from onecurve.describe.cluster import Cluster
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Precision
from onecurve.job.script import load_job
from onecurve.job.script_path import Script, script_path
from onecurve.params.row_timing import time_rows
from onecurve.planner.clusters import HERE, find_cluster, source_of
from onecurve.planner.plan_choice import read_precisions
from onecurve.planner.planner import Planner
from onecurve.report.advice import plan_file
from onecurve.runtime.manual import refuse_manual_backward
from onecurve.verbs.probe import probe_this_host
from onecurve.verbs.shown import ShownAdvice


def plan(
    script: Script,
    arguments: Sequence[str] = (),
    *,
    cluster: str | Cluster = HERE,
    precision: Sequence[Precision] = ("fp32",),
    price: float | None = None,
    out: str | Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ShownAdvice:
    """Find the best way to split the job of a script on a cluster, as `onecurve plan` does. Needs no accelerator.

    Args:
        script: The Python file that defines `job()`, or that function itself.
        arguments: Arguments of `job()`, as texts `"name=value"`. Default: none.
        cluster: The machines: a `onecurve.Cluster`, a shorthand (hosts × devices × name, such as `"2x8xH100"`), or the
            path of a cluster.toml. Default: `"here"`, this host, which is measured once.
        precision: Precisions that a plan may compute in: `"fp32"`, `"bf16"`, `"fp16"`. Default: fp32.
        price: Dollars per device-hour (per host-hour on CPU). Default: None, that of the cluster, if it is known.
        out: Path of the plan.toml to write. Default: None, nothing is written.
        say: A function that is called with short texts about what is being done. Default: they are dropped.

    Returns:
        The best plan with its step time (seconds), memory (bytes), hours and cost, and why the other plans lost.

    Example::

        advice = oc.plan("train.py", cluster="8xH100", precision=["bf16"])
        print(advice.best.plan, advice.best.step, "s per step")
    """
    path = script_path(script, "plan")
    precisions = read_precisions(precision)
    say("reading the job")
    job = load_job(path, arguments)
    refuse_manual_backward(job, f"{path}: it cannot be planned")
    data = open_data(job)
    data.reader.verify()
    machines = _with_price(find_cluster(cluster, probe_this_host, say), price)
    planner = Planner(job, data, machines, precisions, say, compare_precisions=True)
    planner.test_loss()
    planner.sample_tables(time_rows)
    if cluster == HERE:
        planner.time_model()
    else:
        planner.ignore_read_time()
    advice = replace(planner.advice(str(path)), machines_source=source_of(cluster))
    if out is not None and advice.best is not None:
        Path(out).write_text(plan_file(advice), encoding="utf-8")
    return ShownAdvice(**vars(advice))


def _with_price(cluster: Cluster, price: float | None) -> Cluster:
    if price is None:
        return cluster
    if not price > 0:
        raise OnecurveError(f"price = {price}; it must be above 0: dollars per device-hour (per host-hour on CPU)")
    return replace(cluster, groups=tuple(replace(group, price_per_hour=price) for group in cluster.groups))
