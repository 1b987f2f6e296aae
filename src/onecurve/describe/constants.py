"""Constants of the performance model that no data sheet states.

The defaults up to `round_overhead_seconds` are fitted to published measurements by benchmarks/fit.py, which prints
them; none of them belongs to a single source or device. The constants from `dtensor_dispatch_factor` on describe
onecurve's own engine; measure/ has values for CPU hosts. `error` and `calibration` are updated after finished runs.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """Efficiencies, overheads and correction factors of one cluster."""

    matmul_efficiency: float = 1.0
    """Speed of a model's matrix products, as a fraction of what large matrix products reach in isolation."""
    attention_efficiency: float = 0.99
    """Speed of a model's attention, as a fraction of what fused attention reaches in isolation."""
    memory_efficiency: float = 0.865
    """Fraction of the memory bandwidth that operations reach."""
    op_launch_seconds: float = 17.2e-6
    """Seconds that the host needs to launch one operation."""
    collective_launch_ops: float = 2.4
    """Host time to launch one collective, as a multiple of the time to launch an operation."""
    intra_host_efficiency: float = 0.775
    """Fraction of the intra-host link bandwidth that collectives reach."""
    inter_host_efficiency: float = 0.349
    """Fraction of the network bandwidth that collectives reach."""
    overlap_penalty: float = 0.433
    """Fraction of overlapped communication time that still slows compute: both use the same cores and memory."""
    step_overhead_seconds: float = 1.3e-3
    """Fixed seconds per step: reading results, the training loop itself."""
    round_overhead_seconds: float = 3.1e-3
    """Fixed seconds per gradient-accumulation round."""
    dtensor_dispatch_factor: float = 1.0
    """Time to launch an operation on DTensors, as a multiple of the time for plain tensors."""
    step_overhead_ops: float = 0.0
    """Host time per step outside its rounds, in multiples of the smallest operation (CPU only)."""
    round_overhead_ops: float = 0.0
    """Host time per round outside the model, in multiples of the smallest operation (CPU only)."""
    fsdp_ops_per_parameter: float = 0.0
    """Host time to all-gather or reduce-scatter one parameter, in multiples of the smallest operation; excludes the
    communication itself (CPU only)."""
    split_backward_factor: float = 1.0
    """Time to launch a backward operation when backward is split into input and weight gradients (zero-bubble), as a
    multiple of the time in an ordinary backward."""
    full_recompute_factor: float = 1.0
    """Time to launch an operation under full activation checkpointing, as a multiple of the time without it."""
    selective_recompute_factor: float = 1.0
    """Time to launch an operation under selective activation checkpointing, as a multiple of the time without it."""
    error: float = 0.15
    """Relative error that nine of ten predictions stay within; the default is for published runs
    (benchmarks/published_runs.py)."""
    calibration: float = 1.0
    """Measured over predicted step time, averaged over finished runs; predictions are multiplied by it."""
    calibration_runs: int = 0
    """Number of finished runs that `calibration` is based on."""
