"""Whether the state of a training fits: weights, gradients and optimizer state. Activations come on top."""

from onecurve.describe.cluster import Cluster
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.units import bytes_text


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
    sharers = f" for each of {plan.mesh.size} ranks" if plan.mesh.size > 1 and cluster.device == "cpu" else ""
    raise OnecurveError(
        f"model: its weights, gradients and optimizer state take {bytes_text(needed)} per rank under the plan {plan}, "
        f"this host's {cluster.device} has {bytes_text(available)}{sharers}; {_mend(needed, plan, cluster)}"
    )


def _mend(needed: int, plan: Plan, cluster: Cluster) -> str:
    copies = plan.mesh.replicate if cluster.device == "cpu" else 1
    whole = needed * plan.mesh.shard * plan.mesh.tensor * plan.mesh.pipeline
    if cluster.device == "cpu":
        if whole <= cluster.memory:
            return f"its {copies} copies are too many: use fewer ranks, or 'shard' instead of 'replicate'"
    elif whole <= available_together(cluster):
        return f"shard it over {-(-whole // cluster.memory)} devices: for example shard{-(-whole // cluster.memory)}"
    return f"one copy takes {bytes_text(whole)}: use a smaller model, or a host with more memory"


def available_together(cluster: Cluster) -> int:
    return cluster.memory * cluster.devices
