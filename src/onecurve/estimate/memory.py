"""Memory of a rank by component, and a check of the training state alone before anything else is known.

Activations: what a stage saves of one round, times the number of rounds in flight (with 1f1b, the number of stages from
this one to the last). Under full recomputation a stage saves the input of each block, and one block is being recomputed
(Korthikanti et al. 2022, arXiv:2205.05198).
"""

from onecurve.describe.cluster import Cluster
from onecurve.describe.engine import Engine
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.profile import ModuleProfile, Profile
from onecurve.describe.units import bytes_text
from onecurve.estimate.stage_share import largest_share, parameters_per_rank, trainable_per_rank


def memory_components(profile: Profile, plan: Plan, engine: Engine, overhead: float) -> dict[str, float]:
    """Return the bytes of the fullest rank by component. `overhead` is added as it is."""
    return {
        **_state(profile, plan, engine),
        "activations": _activations(profile, plan, engine),
        "overhead": overhead,
    }


def _state(profile: Profile, plan: Plan, engine: Engine) -> dict[str, float]:
    mesh = plan.mesh
    elements, trainable = parameters_per_rank(profile, plan), trainable_per_rank(profile, plan)
    largest = max((block.parameters for block in profile.blocks), default=0)
    # zero3 prefetches the next block; the parameters outside the blocks stay gathered until the end of backward.
    gathered = elements if plan.sharding == "zero2" else 2 * largest + profile.outside.parameters
    # fully_shard wraps these plans even if each rank is its own shard, and then stores a second copy of everything.
    wrapped = mesh.shard > 1 or (mesh.data > 1 and mesh.size > mesh.data)
    if mesh.shard == 1:
        gathered = elements
    return {
        "weights": elements * engine.weight_bytes / mesh.shard,
        "gradients": trainable * engine.stored_gradient_bytes / (1 if _keeps_full_gradients(plan) else mesh.shard),
        "optimizer": trainable
        * engine.optimizer_state_bytes
        / (mesh.shard * (mesh.replicate if engine.shards_optimizer_state else 1)),
        "gathered": gathered * engine.all_gather_bytes if wrapped and engine.keeps_gathered_copy else 0.0,
    }


def snapshot_bytes(profile: Profile, plan: Plan, engine: Engine, copies: int) -> float:
    """Return the bytes of the fullest rank's copies of its part of the training state; replicas divide it."""
    weights = parameters_per_rank(profile, plan) * engine.weight_bytes
    return copies * (weights + trainable_per_rank(profile, plan) * engine.optimizer_state_bytes) / plan.mesh.data


def _keeps_full_gradients(plan: Plan) -> bool:
    """True if fully_shard accumulates unsharded gradients from round to round, because it does not reduce per round."""
    return plan.mesh.shard > 1 and plan.rounds > 1 and plan.reduce == "step"


def _activations(profile: Profile, plan: Plan, engine: Engine) -> float:
    """Return the larger of two stages: the first has the most rounds in flight, the last has the model's output."""
    block_bytes = [_saved_activations(block, plan, engine) for block in profile.blocks]
    total = sum(size * block.count for size, block in zip(block_bytes, profile.blocks, strict=True))
    share = largest_share(profile, plan, block_bytes)
    largest = max((block.activation_bytes for block in profile.blocks), default=0)
    recomputed = largest if plan.recompute != "none" else 0
    first = _rounds_in_flight(plan) * share * total + recomputed + profile.shared_activation_bytes
    last = share * total + recomputed + profile.shared_activation_bytes + profile.outside.activation_bytes
    return max(first, last)


def _rounds_in_flight(plan: Plan) -> float:
    """Return the number of rounds whose activations the first stage stores at the same time.

    Interleaved stages start with more rounds, each of them a part of the rank's blocks (Narayanan et al. 2021,
    arXiv:2104.04473).
    """
    ranks, stages_per_rank = plan.mesh.pipeline, plan.stage_count // plan.mesh.pipeline
    if plan.schedule == "gpipe" and ranks > 1:
        return plan.rounds
    factor = 1 + (ranks - 1) / (ranks * stages_per_rank) if stages_per_rank > 1 else 1.0
    return min(plan.rounds, factor * ranks)


def _saved_activations(block: ModuleProfile, plan: Plan, engine: Engine) -> float:
    """Return the bytes that one block saves for backward in one round.

    They include weights that were cast to the compute dtype, unless sharded parameters are all-gathered in that dtype.
    """
    input_bytes = block.input_bytes / (plan.mesh.tensor if plan.sequence else 1)
    if plan.recompute == "full":
        return input_bytes
    if plan.recompute == "selective":
        return min(input_bytes + block.matmul_output_bytes, block.activation_bytes)
    casts = engine.all_gather_bytes * block.parameters if engine.all_gather_bytes < engine.weight_bytes else 0.0
    return max(input_bytes, block.activation_bytes - casts) if plan.mesh.shard > 1 else block.activation_bytes


def state_bytes(parameters: int, trained: int, optimizer_tensors: int, plan: Plan) -> int:
    """Return the bytes of weights, gradients and optimizer state per rank.

    `parameters` is the bytes of all weights in fp32, `trained` the bytes of those that are trained. The model is
    assumed to be divided evenly over `tensor` and `pipeline`.
    """
    shard, model_ranks = plan.mesh.shard, plan.mesh.tensor * plan.mesh.pipeline
    gradients = trained if _keeps_full_gradients(plan) else trained // shard
    width = 2 if plan.precision == "fp64" else 1
    return width * (parameters // shard + gradients + optimizer_tensors * trained // shard) // model_ranks


def refuse_if_too_large(needed: int, plan: Plan, host: Cluster, local_ranks: int) -> None:
    """Raise OnecurveError if `needed` bytes per rank do not fit. The message says how much is missing and the fix.

    `host`: this host, as a cluster of one host. `local_ranks`: ranks that share it.
    """
    available = host.memory_per_rank(local_ranks)
    if needed <= available:
        return
    sharers = f" for each of {local_ranks} ranks" if local_ranks > 1 and host.device_kind == "cpu" else ""
    raise OnecurveError(
        f"model: weights, gradients and optimizer state need {bytes_text(needed)} per rank under the plan {plan}, but "
        f"the {host.device_kind} of this host has {bytes_text(available)}{sharers}; {_fix(needed, plan, host)}"
    )


def _fix(needed: int, plan: Plan, cluster: Cluster) -> str:
    replicas = plan.mesh.replicate if cluster.device_kind == "cpu" else 1
    unsharded = needed * plan.mesh.shard * plan.mesh.tensor * plan.mesh.pipeline
    if cluster.device_kind == "cpu":
        if unsharded <= cluster.memory:
            return f"{replicas} replicas are too many: use fewer ranks, or 'shard' instead of 'replicate'"
    elif unsharded <= _total_memory(cluster):
        devices = -(-unsharded // cluster.memory)
        return f"shard it over {devices} devices: for example shard{devices}"
    return f"one replica needs {bytes_text(unsharded)}: use a smaller model, or a host with more memory"


def _total_memory(cluster: Cluster) -> int:
    return cluster.memory * cluster.devices
