"""Spreads a model's blocks over pipeline stages: measure tells what flows and what it costs, search balances."""

from collections.abc import Iterable

from torch import nn

from onecurve.describe.costs import BlockChain, Weight
from onecurve.describe.dataflow import Dataflow
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.profile import ModuleProfile, Profile
from onecurve.measure.dataflow import trace_dataflow
from onecurve.measure.module_calls import run_one_of_each_kind
from onecurve.planner.job_profile import profile_of
from onecurve.planner.traced_model import FEW, TracedModel
from onecurve.search.stage_balance import balance


def dataflow_of(traced: TracedModel) -> Dataflow:
    """What flows between the blocks of the job's model."""
    if not traced.blocks:
        raise OnecurveError(
            "model: no repeated blocks were found in it, so a pipeline has nothing to split; use another axis"
        )
    with run_one_of_each_kind(traced.modules):
        return trace_dataflow(traced.model, traced.blocks, traced.mode, lambda: traced.deferred.forward(traced.micro()))


def refuse_other_blocks(plan: Plan, dataflow: Dataflow) -> None:
    """A plan that was written for another model, or by hand."""
    if sum(plan.stages) != len(dataflow.blocks) or min(plan.stages) < 1:
        raise OnecurveError(
            f"plan {plan}: its stages {list(plan.stages)} are for {sum(plan.stages)} blocks, the model has "
            f"{len(dataflow.blocks)}; give every stage at least one, or leave stages out"
        )


def assign_blocks(plan: Plan, traced: TracedModel) -> tuple[int, ...]:
    """How many blocks each stage has."""
    try:
        profile = profile_of(traced, min(FEW, traced.job.global_batch))
    except Exception:  # a loss may ask for values, which fake tensors do not have
        profile = None
    row = block_chain_of(traced, profile)
    if plan.stage_count > len(row.blocks):
        raise OnecurveError(
            f"plan {plan}: {plan.stage_count} stages for a model of {len(row.blocks)} blocks; shorten the pipeline"
        )
    return balance(row, plan.stage_count)


def block_chain_of(traced: TracedModel, profile: Profile | None) -> BlockChain:
    """The model's blocks, to be spread over stages; weighed by their size where there is no profile."""
    dataflow, model = dataflow_of(traced), traced.model
    if profile is None:
        return BlockChain(tuple((float(_bytes(model, [name])), 0.0) for name in dataflow.blocks))
    of_block = {name: each for each in profile.blocks for name in each.names}
    copies = 2 + profile.optimizer_tensors  # parameters, gradients, optimizer state
    return BlockChain(
        tuple(_weight(of_block[name], copies) for name in dataflow.blocks),
        (0.0, float(copies * _bytes(model, dataflow.used[0]))),
        # What is outside the blocks and costs time is the head and the loss; embeddings are looked up.
        (float(profile.outside.work.flops), float(copies * _bytes(model, dataflow.used[-1]))),
        tuple(profile.blocks.index(of_block[name]) for name in dataflow.blocks),
    )


def _weight(block: ModuleProfile, copies: int) -> Weight:
    return float(block.work.flops), float(copies * block.parameter_bytes + block.activation_bytes)


def _bytes(model: nn.Module, units: Iterable[str]) -> int:
    return sum(parameter.nbytes for name in units for parameter in model.get_submodule(name).parameters())
