"""Plans that follow from another one when a run has to go on under changed conditions. All train the same.

They need no measurement and no time: a running job must not wait for a search.
"""

from collections.abc import Mapping
from dataclasses import replace
from operator import truediv

from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, split_evenly
from onecurve.search.shares import shares_by_speed

_WORTHWHILE = 0.95
"""A change of the shares must make a step at least 5 % shorter."""
_MOST_UNEVEN = 1024
"""Data-parallel ranks of a plan with uneven shares."""


def with_smaller_footprint(plan: Plan) -> Plan | None:
    """The next plan to try when memory ran out: smaller micro-batches, then recomputation, then sharding.

    None if there is none.
    """
    for parts in range(2, max(plan.shares) + 1):
        if (smaller := _with_rounds(plan, parts)) is not None:
            return smaller
    if plan.recompute != "full":
        return replace(plan, recompute="full")
    if plan.mesh.replicate > 1 and plan.mesh.pipeline == 1:
        mesh = replace(plan.mesh, replicate=1, shard=plan.mesh.data)
        return replace(plan, mesh=mesh, sharding="zero3")
    return None


def _with_rounds(plan: Plan, parts: int) -> Plan | None:
    """The plan with `parts` times as many rounds; None if a round cannot be divided so."""
    if plan.round_size % parts or plan.round_size // parts < plan.mesh.data:
        return None
    shares = split_evenly(plan.round_size // parts, plan.mesh.data)
    if all(share % parts == 0 for share in plan.shares):  # the proportions can be kept
        shares = tuple(share // parts for share in plan.shares)
    elif max(shares) >= max(plan.shares):
        return None
    return replace(plan, micro_batch=shares, rounds=plan.rounds * parts)


def with_ranks(plan: Plan, most: int) -> Plan | None:
    """The plan for at most this many ranks: the model is split as before, the samples over more or fewer ranks.

    None if there is none. A step takes as long as the largest share, so a number of ranks is preferred that gives all
    the same one, even if it is smaller.
    """
    mesh = plan.mesh
    data = most // (mesh.size // mesh.data)
    rounds = next((rounds for rounds in _fewer_rounds(plan) if plan.global_batch // rounds >= data), plan.rounds)
    samples = plan.global_batch // rounds
    data = min(data, samples)
    if data < 1:
        return None
    data = _with_even_shares(samples, data)
    if data % mesh.shard == 0:
        axes = {"replicate": data // mesh.shard, "shard": mesh.shard}
    else:
        axes = {"replicate": 1, "shard": data} if mesh.shard > 1 else {"replicate": data, "shard": 1}
    return replace(
        plan,
        mesh=Mesh(**{**mesh.degrees, **axes}),
        micro_batch=split_evenly(samples, data),
        rounds=rounds,
        sharding=plan.sharding if axes["shard"] > 1 else "zero3",
        compress=plan.compress if data > 1 else "none",
    )


def _with_even_shares(samples: int, data: int) -> int:
    """The number of data-parallel ranks, at most `data`, whose largest share is least; equal shares, if there are."""
    share = -(-samples // data)
    if samples % share == 0:
        return samples // share
    if data <= _MOST_UNEVEN:
        return data
    # Every rank is told all shares if they differ: with many ranks a larger share that all have is better.
    return next(samples // larger for larger in range(share, samples + 1) if samples % larger == 0)


def _fewer_rounds(plan: Plan) -> list[int]:
    """Numbers of rounds that divide the global batch, most first, beginning with the plan's own."""
    least = plan.mesh.pipeline
    return [rounds for rounds in range(plan.rounds, least - 1, -1) if plan.global_batch % rounds == 0]


def with_shares(plan: Plan, speeds: Mapping[int, float]) -> Plan | None:
    """The plan in which slow data-parallel ranks get fewer samples. `speeds`: of these, where the others have 1.

    None if no division of the samples is noticeably better.
    """
    if plan.mesh.data == 1 or plan.mesh.pipeline > 1:
        return None
    of_all = [speeds.get(rank, 1.0) for rank in range(plan.mesh.data)]
    shares = shares_by_speed(plan.round_size, of_all)
    before, after = (max(map(truediv, each, of_all)) for each in (plan.shares, shares))
    return replace(plan, micro_batch=shares) if after <= _WORTHWHILE * before else None
