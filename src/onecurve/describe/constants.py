"""What no data sheet says. Fitted to published measurements by benchmarks/fit.py, which prints them; none belongs to
one source or one device. From `cut` on they are onecurve's own engine's, and what its runs have taught."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    matmul_efficiency: float = 1.0
    """What the products of a model reach of what large products alone reach."""
    attention_efficiency: float = 0.99
    """What the attention of a model reaches of what fused attention alone reaches."""
    memory_efficiency: float = 0.865
    """What operations reach of the memory's bandwidth."""
    op_launch_seconds: float = 17.2e-6
    """Seconds that the host takes to start one operation."""
    collective_launch_ops: float = 2.4
    """How many operations' time it takes the host to start a collective."""
    intra_host_efficiency: float = 0.775
    """What collectives reach of the links inside a host."""
    inter_host_efficiency: float = 0.349
    """What they reach of the network."""
    overlap_penalty: float = 0.433
    """How much of what is sent beside computing is felt all the same: both use the same cores and memory."""
    step_overhead_seconds: float = 1.3e-3
    """Seconds of a step that belong to nothing else: reading outcomes, the loop itself."""
    round_overhead_seconds: float = 3.1e-3
    """The same of a round."""
    dtensor_dispatch_factor: float = 1.0
    """How many times as long as others an operation on distributed tensors takes to start."""
    step_overhead_ops: float = 0.0
    """How many operations' time a step takes the host that computes itself, beside its rounds."""
    round_overhead_ops: float = 0.0
    """The same of a round, beside the model."""
    fsdp_ops_per_parameter: float = 0.0
    """How many operations' time it takes the host to gather or scatter one parameter, beside what is sent."""
    split_backward_factor: float = 1.0
    """How many times as long as others an operation of a backward takes to start that runs in halves."""
    full_recompute_factor: float = 1.0
    """How many times as long as others an operation takes to start whose outcome is forgotten, to be computed again."""
    selective_recompute_factor: float = 1.0
    """How many times as long as others an operation takes to start that is watched, to keep or forget what it gives."""
    error: float = 0.15
    """Nine of ten published steps lie within this part of what is predicted: benchmarks/published_runs.py."""
    calibration: float = 1.0
    """How many times as long as predicted the steps of finished runs took."""
    calibration_runs: int = 0
    """How many of them there were."""
