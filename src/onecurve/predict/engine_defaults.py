"""onecurve's own engine, as a plan sets it up."""

from onecurve.describe.engine import Engine
from onecurve.describe.plan import Plan


def engine_of(plan: Plan, optimizer_tensors: int) -> Engine:
    """Weights, sums of gradients and optimizer state are in float32; what is sharded is gathered in what is computed
    in. An optimizer reads weight, gradient and its state, and writes all but the gradient."""
    width = 8 if plan.precision == "fp64" else 4
    narrow = 2 if plan.precision in ("bf16", "fp16") else width
    return Engine(
        gradient_bytes=2 if plan.compress != "none" else width,
        all_gather_bytes=narrow,
        update_bytes=(3 + 2 * optimizer_tensors) * width,
        weight_bytes=width,
        stored_gradient_bytes=width,
        optimizer_state_bytes=optimizer_tensors * width,
    )
