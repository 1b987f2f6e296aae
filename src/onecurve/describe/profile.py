"""What a model's parts cost, as measure/ traces it and predict/ prices it."""

from dataclasses import dataclass
from typing import Literal

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


@dataclass(frozen=True)
class Collective:
    """One exchange between the ranks of an axis."""

    kind: CollectiveKind
    size: int
    """Bytes of the whole tensor: what every rank has afterwards (all_gather) or before (the others)."""
    when: Literal["forward", "backward"]


@dataclass(frozen=True)
class Work:
    """What one rank does for one micro-batch, forward and backward."""

    flops: int
    collectives: tuple[Collective, ...] = ()
