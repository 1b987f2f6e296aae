"""Completes plans that split a model without saying where."""

from collections.abc import Sequence
from dataclasses import replace

from onecurve.data.training_data import TrainingData
from onecurve.describe.plan import Plan
from onecurve.job.job import Job
from onecurve.planner.pipeline_stages import assign_blocks
from onecurve.planner.tensor_layouts import layouts_for
from onecurve.planner.traced_model import TracedModel


def complete(plan: Plan, job: Job, data: TrainingData) -> Plan:
    """The plan with its layouts and stages."""
    return complete_all([plan], job, data)[0]


def complete_all(plans: Sequence[Plan], job: Job, data: TrainingData) -> list[Plan]:
    """The same for several plans of one job."""
    traced = TracedModel(job, data) if any(map(_lacks, plans)) else None
    layouts: dict[int, dict[str, str]] = {}
    stages: dict[int, tuple[int, ...]] = {}
    completed = []
    for plan in plans:
        degree, count = plan.mesh.tensor, plan.stage_count
        if traced is not None and degree > 1 and not plan.layouts:
            if degree not in layouts:
                layouts[degree] = layouts_for(plan, traced)
            plan = replace(plan, layouts=layouts[degree])
        if traced is not None and plan.mesh.pipeline > 1 and not plan.stages:
            if count not in stages:
                stages[count] = assign_blocks(plan, traced)
            plan = replace(plan, stages=stages[count])
        completed.append(plan)
    return completed


def _lacks(plan: Plan) -> bool:
    return (plan.mesh.tensor > 1 and not plan.layouts) or (plan.mesh.pipeline > 1 and not plan.stages)
