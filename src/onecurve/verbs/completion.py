"""Completes plans that split a model without saying where."""

from collections.abc import Sequence
from dataclasses import replace

from onecurve.describe.plan import Plan
from onecurve.job.job import Job
from onecurve.verbs.data import Data
from onecurve.verbs.layouts import layouts_for
from onecurve.verbs.stages import spread
from onecurve.verbs.tracing import Traceable


def complete(plan: Plan, job: Job, data: Data) -> Plan:
    """The plan with its layouts and stages."""
    return complete_all([plan], job, data)[0]


def complete_all(plans: Sequence[Plan], job: Job, data: Data) -> list[Plan]:
    """The same for several plans of one job."""
    traceable = Traceable(job, data) if any(map(_lacks, plans)) else None
    layouts: dict[int, dict[str, str]] = {}
    stages: dict[int, tuple[int, ...]] = {}
    completed = []
    for plan in plans:
        degree, count = plan.mesh.tensor, plan.stage_count
        if traceable is not None and degree > 1 and not plan.layouts:
            if degree not in layouts:
                layouts[degree] = layouts_for(plan, traceable)
            plan = replace(plan, layouts=layouts[degree])
        if traceable is not None and plan.mesh.pipeline > 1 and not plan.stages:
            if count not in stages:
                stages[count] = spread(plan, traceable)
            plan = replace(plan, stages=stages[count])
        completed.append(plan)
    return completed


def _lacks(plan: Plan) -> bool:
    return (plan.mesh.tensor > 1 and not plan.layouts) or (plan.mesh.pipeline > 1 and not plan.stages)
