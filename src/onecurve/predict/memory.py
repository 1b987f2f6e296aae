"""Memory by component; and whether the state alone fits, before anything else is known.

Activations: what a stage keeps of one round, for as many rounds as are under way at once (1f1b: as many as there are
stages behind it); under full recomputation what each block was given, and one block at work (Korthikanti et al. 2022,
arXiv:2205.05198).
"""

from onecurve.describe.cluster import Cluster
from onecurve.describe.engine import Engine
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.profile import ModuleProfile, Profile
from onecurve.describe.units import bytes_text
from onecurve.predict.stage_share import held, largest_share, trained


def components(profile: Profile, plan: Plan, engine: Engine, overhead: float) -> dict[str, float]:
    """Bytes of the fullest rank: of the first stage, which has most rounds under way, or of the last, which has the
    output."""
    mesh = plan.mesh
    elements, updated = held(profile, plan), trained(profile, plan)
    whole_gradients = mesh.shard > 1 and plan.rounds > 1 and plan.reduce == "step"
    largest = max((block.parameters for block in profile.blocks), default=0)
    # The next block's are on their way; what is outside the blocks stays until the end of backward.
    gathered = elements if plan.sharding == "zero2" else 2 * largest + profile.outside.parameters
    # fully_shard wraps these, also where each rank is its own shard: then it keeps a second set.
    wrapped = mesh.shard > 1 or (mesh.data > 1 and mesh.size > mesh.data)
    if mesh.shard == 1:
        gathered = elements
    state = {
        "weights": elements * engine.weight_bytes / mesh.shard,
        "gradients": updated * engine.stored_gradient_bytes / (1 if whole_gradients else mesh.shard),
        "optimizer": updated
        * engine.optimizer_state_bytes
        / (mesh.shard * (mesh.replicate if engine.shards_optimizer_state else 1)),
        "gathered": gathered * engine.all_gather_bytes if wrapped and engine.keeps_gathered_copy else 0.0,
    }
    under_way = _under_way(plan)
    between = mesh.tensor if plan.sequence else 1  # what lies between blocks is cut as well
    each = [_kept(block, plan, engine, between) for block in profile.blocks]
    activation_bytes = sum(one * block.count for one, block in zip(each, profile.blocks, strict=True))
    share = largest_share(profile, plan, each)
    at_work = max((block.activation_bytes for block in profile.blocks), default=0) if plan.recompute != "none" else 0
    first = under_way * share * activation_bytes + at_work + profile.shared_activation_bytes
    last = share * activation_bytes + at_work + profile.shared_activation_bytes + profile.outside.activation_bytes
    return {**state, "activations": max(first, last), "overhead": overhead}


def _under_way(plan: Plan) -> float:
    """Rounds whose activations the first stage has at once. Interleaved stages begin with more of them, each a part of
    a round (Narayanan et al. 2021, arXiv:2104.04473)."""
    stages, per_rank = plan.mesh.pipeline, plan.stage_count // plan.mesh.pipeline
    if plan.schedule == "gpipe" and stages > 1:
        return plan.rounds
    more = 1 + (stages - 1) / (stages * per_rank) if per_rank > 1 else 1.0
    return min(plan.rounds, more * stages)


def _kept(block: ModuleProfile, plan: Plan, engine: Engine, between: int) -> float:
    """Of one round. Weights that were cast for it are kept with it, unless they were gathered as they are needed."""
    input_bytes = block.input_bytes / between
    if plan.recompute == "full":
        return input_bytes
    if plan.recompute == "selective":
        return min(input_bytes + block.matmul_output_bytes, block.activation_bytes)
    casts = engine.all_gather_bytes * block.parameters if engine.all_gather_bytes < engine.weight_bytes else 0.0
    return max(input_bytes, block.activation_bytes - casts) if plan.mesh.shard > 1 else block.activation_bytes


def state_bytes(parameters: int, trained: int, optimizer_tensors: int, plan: Plan) -> int:
    """Bytes per rank, of `parameters` bytes of float32 weights of which `trained` are trained; a model that is split
    comes apart evenly here."""
    shard, split = plan.mesh.shard, plan.mesh.tensor * plan.mesh.pipeline
    # Without a reduction per round fully_shard keeps whole gradients from round to round.
    whole_gradients = shard > 1 and plan.rounds > 1 and plan.reduce == "step"
    gradients = trained if whole_gradients else trained // shard
    width = 2 if plan.precision == "fp64" else 1
    return width * (parameters // shard + gradients + optimizer_tensors * trained // shard) // split


def refuse_if_too_large(needed: int, plan: Plan, cluster: Cluster) -> None:
    """Say by how much the state does not fit, and what would make it fit."""
    available = cluster.memory_per_rank(plan.mesh.size)
    if needed <= available:
        return
    sharers = f" for each of {plan.mesh.size} ranks" if plan.mesh.size > 1 and cluster.device_kind == "cpu" else ""
    raise OnecurveError(
        f"model: its weights, gradients and optimizer state take {bytes_text(needed)} per rank under the plan {plan}, "
        f"this host's {cluster.device_kind} has {bytes_text(available)}{sharers}; {_mend(needed, plan, cluster)}"
    )


def _mend(needed: int, plan: Plan, cluster: Cluster) -> str:
    copies = plan.mesh.replicate if cluster.device_kind == "cpu" else 1
    whole = needed * plan.mesh.shard * plan.mesh.tensor * plan.mesh.pipeline
    if cluster.device_kind == "cpu":
        if whole <= cluster.memory:
            return f"its {copies} copies are too many: use fewer ranks, or 'shard' instead of 'replicate'"
    elif whole <= available_together(cluster):
        return f"shard it over {-(-whole // cluster.memory)} devices: for example shard{-(-whole // cluster.memory)}"
    return f"one copy takes {bytes_text(whole)}: use a smaller model, or a host with more memory"


def available_together(cluster: Cluster) -> int:
    return cluster.memory * cluster.devices
