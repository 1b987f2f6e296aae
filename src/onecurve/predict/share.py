"""What of a model the fullest rank has, shards put together."""

from onecurve.describe.plan import Plan
from onecurve.describe.profile import Profile


def largest_share(profile: Profile, plan: Plan) -> float:
    """The part of all blocks."""
    blocks, ranks = sum(block.count for block in profile.blocks), plan.mesh.pipeline
    if not blocks:
        return 0.0
    if plan.stages:
        return max(sum(plan.stages[rank::ranks]) for rank in range(ranks)) / blocks
    return -(-blocks // ranks) / blocks


def held(profile: Profile, plan: Plan) -> float:
    """Trained elements."""
    inside = sum(block.trained * block.count for block in profile.blocks)
    return largest_share(profile, plan) * inside + profile.outside.trained
