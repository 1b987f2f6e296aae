"""Spreads a model's blocks over pipeline stages: measure tells what flows and what it costs, search balances."""

from collections.abc import Iterable

from torch import nn

from onecurve.describe.errors import OnecurveError
from onecurve.describe.flow import Flow
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Module
from onecurve.job.job import Job
from onecurve.measure.call import alike_once
from onecurve.measure.flow import trace_flow
from onecurve.search.stages import Cost, balance
from onecurve.verbs.data import Data
from onecurve.verbs.profile import profile_of
from onecurve.verbs.tracing import blocks_of, traceable

_SAMPLES = 2


def flow_of(job: Job, data: Data) -> Flow:
    """What flows between the blocks of the job's model."""
    micro = data.micro(0, min(_SAMPLES, job.global_batch))
    blueprint = traceable(job)
    assert blueprint.tape is not None
    blocks = blocks_of(blueprint, micro)
    if not blocks:
        raise OnecurveError(
            "model: no repeated blocks were found in it, so a pipeline has nothing to split; use another axis"
        )
    with alike_once({name: blueprint.module.get_submodule(name) for name in blocks}):
        return trace_flow(blueprint.module, blocks, blueprint.tape.mode, lambda: blueprint.forward(micro))


def refuse_other_blocks(plan: Plan, flow: Flow) -> None:
    """A plan that was written for another model, or by hand."""
    if sum(plan.stages) != len(flow.blocks) or min(plan.stages) < 1:
        raise OnecurveError(
            f"plan {plan}: its stages {list(plan.stages)} are for {sum(plan.stages)} blocks, the model has "
            f"{len(flow.blocks)}; give every stage at least one, or leave stages out"
        )


def spread(plan: Plan, job: Job, data: Data) -> tuple[int, ...]:
    """How many blocks each stage has."""
    flow = flow_of(job, data)
    if plan.stage_count > len(flow.blocks):
        raise OnecurveError(
            f"plan {plan}: {plan.stage_count} stages for a model of {len(flow.blocks)} blocks; shorten the pipeline"
        )
    model = traceable(job).module
    try:
        profile = profile_of(job, data, min(_SAMPLES, job.global_batch))
    except Exception:  # a loss may ask for values, which fake tensors do not have; blocks are weighed by their size
        return balance([(float(_bytes(model, [name])), 0.0) for name in flow.blocks], plan.stage_count)
    of_block = {name: each for each in profile.blocks for name in each.names}
    copies = 2 + profile.optimizer_tensors  # parameters, gradients, optimizer state
    first: Cost = (0.0, copies * _bytes(model, flow.used[0]))
    # What is outside the blocks and costs time is the head and the loss; embeddings are looked up.
    last: Cost = (float(profile.outside.work.flops), copies * _bytes(model, flow.used[-1]))
    return balance([_cost(of_block[name], copies) for name in flow.blocks], plan.stage_count, first, last)


def _cost(block: Module, copies: int) -> Cost:
    return float(block.work.flops), float(copies * block.parameter_bytes + block.kept)


def _bytes(model: nn.Module, units: Iterable[str]) -> int:
    return sum(parameter.nbytes for name in units for parameter in model.get_submodule(name).parameters())
