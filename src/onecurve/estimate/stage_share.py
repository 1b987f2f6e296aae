"""The fraction of a model that the fullest pipeline rank owns, before sharding."""

from collections.abc import Sequence
from functools import lru_cache

from onecurve.describe.plan import Plan
from onecurve.describe.profile import Profile


def largest_share(profile: Profile, plan: Plan, weights: Sequence[float]) -> float:
    """Return the largest fraction of all blocks on one pipeline rank. `weights` has one entry per kind of block."""
    return max(largest_and_last_share(profile, plan, weights))


def largest_and_last_share(profile: Profile, plan: Plan, weights: Sequence[float]) -> tuple[float, float]:
    """Return the largest fraction of all blocks on any pipeline rank except the last, and the last rank's fraction."""
    if plan.mesh.pipeline == 1:
        return 0.0, 1.0
    if len(weights) < 2 or not profile.order:
        return _identical_blocks(sum(block.count for block in profile.blocks), plan.mesh.pipeline, plan.stages)
    return _different_blocks(profile.order, plan.mesh.pipeline, plan.stages, tuple(weights))


@lru_cache
def _identical_blocks(blocks: int, ranks: int, stages: tuple[int, ...]) -> tuple[float, float]:
    counts = stages or _even(blocks, ranks)
    *others, last = (sum(counts[rank::ranks]) / max(1, blocks) for rank in range(ranks))
    return max(others), last


@lru_cache(4096)
def _different_blocks(
    order: tuple[int, ...], ranks: int, stages: tuple[int, ...], weights: tuple[float, ...]
) -> tuple[float, float]:
    rank_weights, begin = [0.0] * ranks, 0
    for stage, count in enumerate(stages or _even(len(order), ranks)):
        rank_weights[stage % ranks] += sum(weights[kind] for kind in order[begin : begin + count])
        begin += count
    total = sum(rank_weights)
    *others, last = (weight / total if total else 0.0 for weight in rank_weights)
    return max(others), last


def _even(blocks: int, ranks: int) -> tuple[int, ...]:
    return tuple(blocks // ranks + (rank < blocks % ranks) for rank in range(ranks))


def parameters_per_rank(profile: Profile, plan: Plan) -> float:
    """Return the number of parameter elements on the fullest pipeline rank."""
    block_parameters = [block.parameters for block in profile.blocks]
    total = sum(block.parameters * block.count for block in profile.blocks)
    return largest_share(profile, plan, block_parameters) * total + profile.outside.parameters


def trainable_per_rank(profile: Profile, plan: Plan) -> float:
    """Return the number of trainable parameter elements on the fullest pipeline rank."""
    block_trainable = [block.trainable for block in profile.blocks]
    total = sum(block.trainable * block.count for block in profile.blocks)
    return largest_share(profile, plan, block_trainable) * total + profile.outside.trainable
