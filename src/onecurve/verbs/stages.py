"""Spreads a model's blocks over pipeline stages: measure tells what flows and what it costs, search balances."""

from onecurve.apply.blueprint import draw
from onecurve.describe.errors import OnecurveError
from onecurve.describe.flow import Flow
from onecurve.describe.plan import Plan
from onecurve.job.job import Job
from onecurve.measure.blocks import called_modules, find_blocks
from onecurve.measure.flow import trace_flow
from onecurve.search.stages import balance
from onecurve.verbs.data import Data

_SAMPLES = 2


def flow_of(job: Job, data: Data) -> Flow:
    """What flows between the blocks of the job's model."""
    micro = data.micro(0, min(_SAMPLES, job.global_batch))
    spent = draw(job.model, job.seed)
    if spent.tape is None:
        raise OnecurveError(f"model: {spent.warning}; a pipeline needs a constructor that can be recorded")
    blocks = find_blocks(spent.module, called_modules(spent.module, lambda _: spent.forward(micro)))
    if not blocks:
        raise OnecurveError(
            "model: no repeated blocks were found in it, so a pipeline has nothing to split; use another axis"
        )
    traced = draw(job.model, job.seed)
    assert traced.tape is not None
    return trace_flow(traced.module, blocks, traced.tape.mode, lambda: traced.forward(micro))


def spread(plan: Plan, job: Job, data: Data) -> tuple[int, ...]:
    """How many blocks each stage has."""
    flow = flow_of(job, data)
    if plan.stage_count > len(flow.blocks):
        raise OnecurveError(
            f"plan {plan}: {plan.stage_count} stages for a model of {len(flow.blocks)} blocks; shorten the pipeline"
        )
    model = draw(job.model, job.seed).module
    costs = [(float(sum(p.numel() for p in model.get_submodule(name).parameters())), 0.0) for name in flow.blocks]
    return balance(costs, plan.stage_count)
