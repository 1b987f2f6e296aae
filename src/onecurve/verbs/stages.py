"""Spreads a model's blocks over pipeline stages: measure tells what flows and what it costs, search balances."""

from collections.abc import Iterable

from torch import nn

from onecurve.describe.costs import Row, Weight
from onecurve.describe.errors import OnecurveError
from onecurve.describe.flow import Flow
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Module, Profile
from onecurve.measure.call import alike_once
from onecurve.measure.flow import trace_flow
from onecurve.search.stages import balance
from onecurve.verbs.profile import profile_of
from onecurve.verbs.tracing import FEW, Traceable


def flow_of(traceable: Traceable) -> Flow:
    """What flows between the blocks of the job's model."""
    if not traceable.blocks:
        raise OnecurveError(
            "model: no repeated blocks were found in it, so a pipeline has nothing to split; use another axis"
        )
    with alike_once(traceable.modules):
        return trace_flow(
            traceable.model, traceable.blocks, traceable.mode, lambda: traceable.blueprint.forward(traceable.micro())
        )


def refuse_other_blocks(plan: Plan, flow: Flow) -> None:
    """A plan that was written for another model, or by hand."""
    if sum(plan.stages) != len(flow.blocks) or min(plan.stages) < 1:
        raise OnecurveError(
            f"plan {plan}: its stages {list(plan.stages)} are for {sum(plan.stages)} blocks, the model has "
            f"{len(flow.blocks)}; give every stage at least one, or leave stages out"
        )


def spread(plan: Plan, traceable: Traceable) -> tuple[int, ...]:
    """How many blocks each stage has."""
    try:
        profile = profile_of(traceable, min(FEW, traceable.job.global_batch))
    except Exception:  # a loss may ask for values, which fake tensors do not have
        profile = None
    row = row_of(traceable, profile)
    if plan.stage_count > len(row.blocks):
        raise OnecurveError(
            f"plan {plan}: {plan.stage_count} stages for a model of {len(row.blocks)} blocks; shorten the pipeline"
        )
    return balance(row, plan.stage_count)


def row_of(traceable: Traceable, profile: Profile | None) -> Row:
    """The model's blocks, to be spread over stages; weighed by their size where there is no profile."""
    flow, model = flow_of(traceable), traceable.model
    if profile is None:
        return Row(tuple((float(_bytes(model, [name])), 0.0) for name in flow.blocks))
    of_block = {name: each for each in profile.blocks for name in each.names}
    copies = 2 + profile.optimizer_tensors  # parameters, gradients, optimizer state
    return Row(
        tuple(_weight(of_block[name], copies) for name in flow.blocks),
        (0.0, float(copies * _bytes(model, flow.used[0]))),
        # What is outside the blocks and costs time is the head and the loss; embeddings are looked up.
        (float(profile.outside.work.flops), float(copies * _bytes(model, flow.used[-1]))),
        tuple(profile.blocks.index(of_block[name]) for name in flow.blocks),
    )


def _weight(block: Module, copies: int) -> Weight:
    return float(block.work.flops), float(copies * block.parameter_bytes + block.kept)


def _bytes(model: nn.Module, units: Iterable[str]) -> int:
    return sum(parameter.nbytes for name in units for parameter in model.get_submodule(name).parameters())
