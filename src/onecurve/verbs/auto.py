"""onecurve run without a plan: it plans by itself, and learns from how the run went."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onecurve.data.training_data import TrainingData, open_data
from onecurve.describe.cluster import Cluster
from onecurve.describe.costs import Costs
from onecurve.describe.errors import OnecurveError
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Precision
from onecurve.describe.summary import RunSummary
from onecurve.device.device import local_device
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.planner.clusters import Say, cache_host, this_host
from onecurve.planner.job_costs import costs_of
from onecurve.planner.timing import timings
from onecurve.planner.traced_model import TracedModel
from onecurve.predict.estimator import Estimator
from onecurve.predict.refinement import refined
from onecurve.search.branch_and_bound import BranchAndBound
from onecurve.search.space import Space
from onecurve.verbs.plan import with_layouts
from onecurve.verbs.probe import probe_this_host

_SHORT = 120.0
"""Seconds: a run that is predicted to be over by then is not worth timing its model for."""


def plan_here(script: Path, arguments: Sequence[str], precision: Sequence[Precision], say: Say) -> Estimate | None:
    """The best plan on this host; None where the job cannot be looked at without being run, or nothing is known to fit:
    then it is tried as it is."""
    job = load_job(script, arguments)
    if job.manual_backward:
        return None
    cluster, data = this_host(probe_this_host, say), open_data(job)
    try:
        costs = _costs(job, data, cluster, precision, say)
    except OnecurveError as error:
        say(f"no plan: {error}; every rank holds a copy")
        return None
    estimator = Estimator(cluster, costs)
    found = BranchAndBound(Space(estimator)).run().best
    if found is not None and estimator.estimate(found.plan).hours * 3600 > _SHORT:
        say("timing the model on this device")
        timed = timings(job, data, local_device(0), cluster, costs, precision)
        estimator = Estimator(cluster, replace(costs, timings=timed))
        found = BranchAndBound(Space(estimator)).run().best
    return None if found is None else estimator.estimate(with_layouts(found.plan, costs))


def _costs(job: Job, data: TrainingData, cluster: Cluster, precision: Sequence[Precision], say: Say) -> Costs:
    say("tracing the model")
    try:
        return costs_of(TracedModel(job, data), precision, cluster.ranks_per_host)
    except OnecurveError:
        raise
    except Exception as error:  # a model or loss may ask for values, which fake tensors do not have
        raise OnecurveError(f"the model could not be traced ({type(error).__name__}: {error})") from error


def learn(estimate: Estimate, summary: RunSummary) -> None:
    """Hold what was predicted against what was measured."""
    if summary.step_seconds <= 0:
        return
    cluster = this_host(probe_this_host, lambda _: None)
    cache_host(replace(cluster, constants=refined(cluster.constants, estimate.step, summary.step_seconds)))
