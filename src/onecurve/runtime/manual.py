"""What a run with the user's own backward pass cannot do, and which jobs need one."""

from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.job.job import Job


def refuse_manual_backward(job: Job, what: str) -> None:
    """Refuse a job that onecurve cannot step by itself. `what` says what was tried."""
    if job.manual_backward:
        several = len(job.optimizers) > 1 or "" not in job.optimizers
        why = "has several optimizers" if several else "has no loss"
        raise OnecurveError(
            f'{what}: it {why}, so you write the backward pass, with onecurve.prepare(job, backward="mine"), and start '
            "it as a script: python train.py, or torchrun --nproc-per-node 2 train.py"
        )


def refuse_unsupported_manual(job: Job, plan: Plan) -> None:
    """Refuse plans and jobs that do not work with backward='mine'."""
    for axis in ("tensor", "pipeline"):
        if plan.mesh.degrees[axis] > 1:
            raise OnecurveError(
                f"plan {plan}: backward='mine' supports the axes replicate and shard; leave {axis!r} out"
            )
    if plan.precision == "fp16":
        raise OnecurveError(f"plan {plan}: backward='mine' has no loss scaling; use bf16 or fp32")
    if plan.compress != "none":
        raise OnecurveError(f"plan {plan}: backward='mine' does not compress gradients; leave compress out")
    if job.evaluate is not None:
        raise OnecurveError("Job: evaluate cannot be used with backward='mine'; evaluate in your own loop")
