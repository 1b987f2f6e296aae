"""How long a collective takes: latency + volume, on a ring.

Source: the ring algorithms in Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
MPICH" (2005, doi:10.1177/1094342005051521); an all-reduce is a reduce-scatter and an all-gather.
"""

from dataclasses import dataclass

from onecurve.describe.profile import Collective, CollectiveKind

_PASSES: dict[CollectiveKind, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How often every byte goes round."""


@dataclass(frozen=True)
class Link:
    """Between neighbours of an axis."""

    latency: float = 5e-6
    """Seconds before the first byte arrives."""
    bandwidth: float = 100e9
    """Bytes per second, each way."""


def seconds(collective: Collective, ranks: int, link: Link) -> float:
    """(n − 1) messages of 1/n of the tensor, for each pass."""
    messages = _PASSES[collective.kind] * (ranks - 1)
    return messages * (link.latency + collective.size / ranks / link.bandwidth)
