"""What no data sheet says. Fitted to published measurements by benchmarks/fit.py, which prints them; none belongs to
one source or one device. From `cut` on they are onecurve's own engine's, and what its runs have taught."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    matrix: float = 1.0
    """What the products of a model reach of what large products alone reach."""
    attention: float = 0.99
    """What the attention of a model reaches of what fused attention alone reaches."""
    memory: float = 0.865
    """What operations reach of the memory's bandwidth."""
    launch: float = 17.2e-6
    """Seconds that the host takes to start one operation."""
    exchange: float = 2.4
    """How many operations' time it takes the host to start a collective."""
    inside: float = 0.775
    """What collectives reach of the links inside a host."""
    network: float = 0.349
    """What they reach of the network."""
    slowdown: float = 0.433
    """How much of what is sent beside computing is felt all the same: both use the same cores and memory."""
    step: float = 1.3e-3
    """Seconds of a step that belong to nothing else: reading outcomes, the loop itself."""
    round: float = 3.1e-3
    """The same of a round."""
    cut: float = 1.0
    """How many times as long as others an operation on distributed tensors takes to start."""
    opening: float = 0.0
    """How many operations' time a step takes the host that computes itself, beside its rounds."""
    turn: float = 0.0
    """The same of a round, beside the model."""
    parameter: float = 0.0
    """How many operations' time it takes the host to gather or scatter one parameter, beside what is sent."""
    parted: float = 1.0
    """How many times as long as others an operation of a backward takes to start that runs in halves."""
    forgotten: float = 1.0
    """How many times as long as others an operation takes to start whose outcome is forgotten, to be computed again."""
    watched: float = 1.0
    """How many times as long as others an operation takes to start that is watched, to keep or forget what it gives."""
    error: float = 0.15
    """Nine of ten published steps lie within this part of what is predicted: benchmarks/published_runs.py."""
    lag: float = 1.0
    """How many times as long as predicted the steps of finished runs took."""
    runs: int = 0
    """How many of them there were."""
