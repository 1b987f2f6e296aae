"""What the software that runs a plan does, as far as the plan does not say."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """onecurve's own by default. Published measurements are of other software, which is described by the same words."""

    efficiency: float = 1.0
    """How fast it is beside the others, all else being said. The only number that belongs to one software."""
    gradient_bytes: float = 4
    """Per element, when gradients are summed over copies."""
    all_gather_bytes: float = 4
    """Per element, when sharded parameters are gathered."""
    overlaps: bool = True
    """Whether gradients are summed while backward goes on."""
    update_bytes: float = 28
    """Moved per element by the update: Adam in fp32 reads weight, gradient and two moments, and writes three."""
    weight_bytes: float = 4
    """Kept per element: weights,"""
    stored_gradient_bytes: float = 4
    """gradients,"""
    optimizer_state_bytes: float = 8
    """and what the optimizer keeps."""
    shards_optimizer_state: bool = False
    """Whether copies along `replicate` share the optimizer's state between them (ZeRO 1)."""
    keeps_gathered_copy: bool = True
    """Whether gathered parameters lie beside the shards, as fully_shard keeps them."""
    recomputes_attention: bool = False
    """Whether selective recomputation computes attention again, or keeps it with the products."""
