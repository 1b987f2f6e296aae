"""What of a model the fullest rank has, shards put together."""

from collections.abc import Sequence
from functools import lru_cache

from onecurve.describe.plan import Plan
from onecurve.describe.profile import Profile


def largest_share(profile: Profile, plan: Plan, weights: Sequence[float]) -> float:
    """The part of all blocks, weighed by what one of each kind takes."""
    return max(most_and_last(profile, plan, weights))


def most_and_last(profile: Profile, plan: Plan, weights: Sequence[float]) -> tuple[float, float]:
    """The part of all blocks that the fullest pipeline rank has, but for the last; and that one's."""
    if plan.mesh.pipeline == 1:
        return 0.0, 1.0
    if len(weights) < 2 or not profile.order:
        return _alike(sum(block.count for block in profile.blocks), plan.mesh.pipeline, plan.stages)
    return _unlike(profile.order, plan.mesh.pipeline, plan.stages, tuple(weights))


@lru_cache
def _alike(blocks: int, ranks: int, stages: tuple[int, ...]) -> tuple[float, float]:
    counts = stages or _even(blocks, ranks)
    *others, last = (sum(counts[rank::ranks]) / max(1, blocks) for rank in range(ranks))
    return max(others), last


@lru_cache(4096)
def _unlike(
    order: tuple[int, ...], ranks: int, stages: tuple[int, ...], weights: tuple[float, ...]
) -> tuple[float, float]:
    each, begin = [0.0] * ranks, 0
    for stage, count in enumerate(stages or _even(len(order), ranks)):
        each[stage % ranks] += sum(weights[kind] for kind in order[begin : begin + count])
        begin += count
    total = sum(each)
    *others, last = (taken / total if total else 0.0 for taken in each)
    return max(others), last


def _even(blocks: int, ranks: int) -> tuple[int, ...]:
    return tuple(blocks // ranks + (rank < blocks % ranks) for rank in range(ranks))


def held(profile: Profile, plan: Plan) -> float:
    """Elements of parameters."""
    each = [block.parameters for block in profile.blocks]
    inside = sum(block.parameters * block.count for block in profile.blocks)
    return largest_share(profile, plan, each) * inside + profile.outside.parameters


def trained(profile: Profile, plan: Plan) -> float:
    """Those of them that are trained."""
    each = [block.trainable for block in profile.blocks]
    inside = sum(block.trainable * block.count for block in profile.blocks)
    return largest_share(profile, plan, each) * inside + profile.outside.trainable
