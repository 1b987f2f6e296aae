"""What no data sheet says. Fitted to published measurements by benchmarks/fit.py, which prints them; none belongs to
one source or one device."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    matrix: float = 0.90
    """What the products of a model reach of what large products alone reach."""
    attention: float = 0.93
    """What the attention of a model reaches of what fused attention alone reaches."""
    memory: float = 0.90
    """What operations reach of the memory's bandwidth."""
    reread: float = 3.0
    """How often a product reads its operands and writes its result: it works in tiles, and small ones wait for them."""
    launch: float = 6e-6
    """Seconds that the host takes to start one operation."""
    inside: float = 0.6
    """What collectives reach of the links inside a host."""
    network: float = 0.75
    """What they reach of the network."""
    slowdown: float = 0.1
    """Computing takes so much longer while something is sent beside it: both use the same cores and memory."""
    step: float = 5e-3
    """Seconds of a step that belong to nothing else: reading outcomes, the loop itself."""
    round: float = 1e-3
    """The same of a round."""
