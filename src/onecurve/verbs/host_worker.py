"""Answers what a launcher, which does not import torch, must know about this host: its devices, and a plan for it."""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

import onecurve
from onecurve.data.training_data import open_data
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.estimate import Estimate
from onecurve.describe.generation import Generation
from onecurve.describe.host import HostRegistration
from onecurve.describe.requests import CalibrationRequest, PlanRequest, RegistrationRequest
from onecurve.device.device import local_cluster
from onecurve.device.environment import HASH_SEED
from onecurve.device.world import World
from onecurve.estimate.refinement import refined
from onecurve.job.script import load_job
from onecurve.launch.stop import Stop
from onecurve.model.deferred import defer_init
from onecurve.params.row_timing import time_rows
from onecurve.planner.clusters import cache_host, cached_host, this_host
from onecurve.planner.planner import Planner
from onecurve.runtime.fingerprint import fingerprint
from onecurve.runtime.same_data import samples_of
from onecurve.verbs.kept_costs import KeptCosts
from onecurve.verbs.probe import probe_this_host

Say = Callable[[str], None]
Answer = Callable[[str, Say], str]
"""(request, say) → answer."""

_NICENESS = 10
"""Plans are also found while ranks of this host train: they come first."""
_SHORT_RUN_SECONDS = 120.0
"""A run that is predicted to take less is not worth timing its model."""


def answer_maker(verb: str) -> Callable[[str, Say], Callable[[World, Stop, Generation], str]]:
    """Return the function that makes the worker for a question of the launcher."""
    answers: dict[str, Answer] = {
        "devices": _devices,
        "plan": _plan,
        "calibrate": _calibrate,
        "registration": _registration,
    }
    return lambda request, say: lambda _, __, ___: answers[verb](request, say)


def _devices(_: str, __: Say) -> str:
    return to_json(local_cluster())


def _registration(request: str, say: Say) -> str:
    """What this host is, what it runs, and which job it has, for the other hosts of a run."""
    asked = from_json(RegistrationRequest, request.encode(), "request")
    registration = HostRegistration(
        name=asked.name,
        address=asked.address,
        cluster=this_host(probe_this_host, say) if asked.measures else local_cluster(),
        versions={
            "onecurve": onecurve.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
            HASH_SEED: os.environ.get(HASH_SEED, "random"),
        },
        job=_fingerprint(Path(asked.script), asked.arguments) if asked.script else asked.job,
    )
    return to_json(registration)


def _fingerprint(script: Path, arguments: Sequence[str]) -> dict[str, str]:
    job = load_job(script, arguments)
    data = open_data(job)
    return {**fingerprint(job, defer_init(job.model, job.seed).module, data), **samples_of(data)}


def _plan(request: str, say: Say) -> str:
    """The best plan as JSON, or "" if the job cannot be planned: it is then run as it is."""
    asked = from_json(PlanRequest, request.encode(), "request")
    os.nice(_NICENESS)
    estimate = _best_plan(asked, say)
    return to_json(estimate) if estimate is not None else ""


def _best_plan(asked: PlanRequest, say: Say) -> Estimate | None:
    job = load_job(Path(asked.script), asked.arguments)
    if job.manual_backward or job.async_workers:
        return None
    cluster, data = asked.cluster or this_host(probe_this_host, say), open_data(job)
    kept = KeptCosts(cluster, asked.precisions)
    try:
        planner = Planner(job, data, cluster, asked.precisions, say, costs=kept.load())
    except OnecurveError as error:
        say(f"no plan: {error}; the model is replicated on every rank")
        return None
    planner.sample_tables(time_rows)
    best = planner.best()
    # The model can be timed only on this host; the timings hold for hosts that are like it.
    is_long = best is not None and best.hours * 3600 > _SHORT_RUN_SECONDS
    if is_long and len(cluster.groups) == 1 and not planner.costs.timings:
        planner.time_model()
        best = planner.best()
    kept.keep(planner.costs)
    return best


def _calibrate(request: str, _: Say) -> str:
    """Compare a prediction with the measured step time, and correct what is cached about this host."""
    asked = from_json(CalibrationRequest, request.encode(), "request")
    cluster = cached_host()
    if asked.measured > 0 and cluster is not None:
        cache_host(replace(cluster, constants=refined(cluster.constants, asked.predicted, asked.measured)))
    return ""
