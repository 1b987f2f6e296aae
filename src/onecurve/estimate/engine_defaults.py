"""The engine properties of onecurve itself under a given plan."""

from onecurve.describe.engine import Engine
from onecurve.describe.plan import Plan


def engine_of(plan: Plan, optimizer_tensors: int, forward_passes: int = 1) -> Engine:
    """Return onecurve's engine for a plan's precision and gradient compression.

    Weights, gradient sums and optimizer state are in fp32 (fp64 under fp64). Sharded parameters are all-gathered in the
    compute dtype. The optimizer reads weight, gradient and state, and writes weight and state.
    """
    element_bytes = 8 if plan.precision == "fp64" else 4
    compute_bytes = 2 if plan.precision in ("bf16", "fp16") else element_bytes
    return Engine(
        gradient_bytes=2 if plan.compress != "none" else element_bytes,
        all_gather_bytes=compute_bytes,
        update_bytes=(3 + 2 * optimizer_tensors) * element_bytes,
        weight_bytes=element_bytes,
        stored_gradient_bytes=element_bytes,
        optimizer_state_bytes=optimizer_tensors * element_bytes,
        forward_passes=forward_passes,
    )
