"""What of a model the fullest rank has, shards put together."""

from functools import lru_cache

from onecurve.describe.plan import Plan
from onecurve.describe.profile import Profile


def largest_share(profile: Profile, plan: Plan) -> float:
    """The part of all blocks."""
    return max(most_and_last(profile, plan))


def most_and_last(profile: Profile, plan: Plan) -> tuple[float, float]:
    """The part of all blocks that the fullest pipeline rank has, but for the last; and that one's."""
    if plan.mesh.pipeline == 1:
        return 0.0, 1.0
    return _parts(sum(block.count for block in profile.blocks), plan.mesh.pipeline, plan.stages)


@lru_cache
def _parts(blocks: int, ranks: int, stages: tuple[int, ...]) -> tuple[float, float]:
    counts = stages or tuple(blocks // ranks + (rank < blocks % ranks) for rank in range(ranks))
    *others, last = (sum(counts[rank::ranks]) / max(1, blocks) for rank in range(ranks))
    return max(others), last


def held(profile: Profile, plan: Plan) -> float:
    """Elements of parameters."""
    inside = sum(block.parameters * block.count for block in profile.blocks)
    return largest_share(profile, plan) * inside + profile.outside.parameters


def trained(profile: Profile, plan: Plan) -> float:
    """Those of them that are trained."""
    inside = sum(block.trained * block.count for block in profile.blocks)
    return largest_share(profile, plan) * inside + profile.outside.trained
