"""Properties of the training software that the plan does not state."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """The defaults describe onecurve. Other values describe the software behind published measurements."""

    efficiency: float = 1.0
    """Overall speed relative to other software after all other fields; the only fitted number for one software."""
    gradient_bytes: float = 4
    """Bytes per element when gradients are reduced over data-parallel ranks."""
    all_gather_bytes: float = 4
    """Bytes per element when sharded parameters are all-gathered."""
    overlaps: bool = True
    """True if gradient reduction overlaps with backward."""
    update_bytes: float = 28
    """Bytes that the optimizer update moves per element: Adam in fp32 reads weight, gradient and two moments, and
    writes three of them."""
    weight_bytes: float = 4
    """Bytes of memory per element for weights."""
    stored_gradient_bytes: float = 4
    """Bytes of memory per element for gradients."""
    optimizer_state_bytes: float = 8
    """Bytes of memory per element for optimizer state."""
    shards_optimizer_state: bool = False
    """True if optimizer state is sharded over the `replicate` axis (ZeRO-1)."""
    keeps_gathered_copy: bool = True
    """True if all-gathered parameters are stored in addition to the shards, as `fully_shard` does."""
    forward_passes: int = 1
    """Forward passes per round; 2 if a loss over the whole batch needs one without gradients first."""
    recomputes_attention: bool = False
    """True if selective recomputation repeats attention; False if it saves attention and matmul outputs."""
