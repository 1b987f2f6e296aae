"""The smallest plan that takes every path through the engines that a plan takes: what is proved before training."""

from dataclasses import replace

from onecurve.describe.plan import Plan

_DEGREE = 2
"""Ranks along a data axis, at most: two of them communicate as many do."""
_SAMPLES = 2
"""Samples of a share, at most. Not one: batch norm refuses it, and `squeeze` would remove the batch dimension."""
_ROUNDS = 2
"""Gradient-accumulation rounds, at most, unless the pipeline needs more."""


def reduced_plan(plan: Plan) -> Plan:
    """Return the plan in float64, with few data-parallel ranks, samples and rounds.

    Its cost does not grow with the number of replicas. The model is split as in `plan`: stages, layouts, sequence
    parallelism, sharding, recomputation and schedule stay.
    """
    mesh = plan.mesh
    return replace(
        plan,
        mesh=replace(mesh, replicate=min(_DEGREE, mesh.replicate), shard=min(_DEGREE, mesh.shard)),
        micro_batch=_shares(plan, min(_DEGREE, mesh.replicate) * min(_DEGREE, mesh.shard)),
        rounds=min(plan.rounds, max(_ROUNDS, mesh.pipeline)),
        precision="fp64",
        compile=False,
        compress="none",
        threads=0,
    )


def _shares(plan: Plan, ranks: int) -> int | tuple[int, ...]:
    """Equal shares, or one larger share if the plan's own are uneven."""
    if not isinstance(plan.micro_batch, tuple):
        return min(_SAMPLES, plan.micro_batch)
    others = min(_SAMPLES, *plan.micro_batch)
    return (others + 1, *[others] * (ranks - 1))
