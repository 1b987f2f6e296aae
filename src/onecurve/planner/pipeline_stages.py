"""Assigns a model's blocks to pipeline stages: measure/ traces dataflow and cost, search/ balances the stages."""

from collections.abc import Iterable

from torch import nn

from onecurve.describe.costs import BlockChain, BlockWeight
from onecurve.describe.dataflow import Dataflow
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.profile import ModuleProfile, Profile
from onecurve.measure.refusal import explain_trace_failure
from onecurve.planner.job_profile import profile_of
from onecurve.planner.traced_model import TRACE_SAMPLES, TracedModel
from onecurve.search.stage_balance import balance


def refuse_mismatched_stages(plan: Plan, dataflow: Dataflow) -> None:
    """Refuse a plan whose stages were written for another model."""
    if sum(plan.stages) != len(dataflow.blocks) or min(plan.stages) < 1:
        raise OnecurveError(
            f"plan {plan}: its stages {list(plan.stages)} are for {sum(plan.stages)} blocks, but the model has "
            f"{len(dataflow.blocks)}; give every stage at least one block, or leave stages out"
        )


def assign_blocks(plan: Plan, traced: TracedModel, dataflow: Dataflow) -> tuple[int, ...]:
    """Return the number of blocks of each stage. `dataflow` says what the blocks are."""
    try:
        profile = profile_of(traced, min(TRACE_SAMPLES, traced.job.global_batch))
    except Exception as error:  # the user's loss may read values, which fake tensors do not have
        explain_trace_failure(error, traced.model, "profile")
        profile = None
    chain = block_chain_of(traced, profile, dataflow)
    if plan.stage_count > len(chain.blocks):
        raise OnecurveError(
            f"plan {plan}: {plan.stage_count} stages, but the model has {len(chain.blocks)} blocks; use fewer stages"
        )
    return balance(chain, plan.stage_count)


def block_chain_of(traced: TracedModel, profile: Profile | None, dataflow: Dataflow) -> BlockChain:
    """Return the blocks in order with their weights; without a profile of them the weight is the parameter bytes."""
    model = traced.model
    profile_by_name = {name: block for block in profile.blocks for name in block.names} if profile is not None else {}
    if profile is None or not profile_by_name.keys() >= set(dataflow.blocks):
        return BlockChain(tuple((float(_parameter_bytes(model, [name])), 0.0) for name in dataflow.blocks))
    copies = 2 + profile.optimizer_tensors  # parameters, gradients, optimizer state
    return BlockChain(
        tuple(_weight(profile_by_name[name], copies) for name in dataflow.blocks),
        (0.0, float(copies * _parameter_bytes(model, dataflow.used[0]))),
        # Outside the blocks only the head and the loss cost time; embeddings are looked up.
        (float(profile.outside.work.flops), float(copies * _parameter_bytes(model, dataflow.used[-1]))),
        tuple(profile.blocks.index(profile_by_name[name]) for name in dataflow.blocks),
    )


def _weight(block: ModuleProfile, copies: int) -> BlockWeight:
    return float(block.work.flops), float(copies * block.parameter_bytes + block.activation_bytes)


def _parameter_bytes(model: nn.Module, units: Iterable[str]) -> int:
    return sum(parameter.nbytes for name in units for parameter in model.get_submodule(name).parameters())
