"""Validation of a plan against the job, the cluster and the features of this version. Every error names the fix."""

from dataclasses import replace
from typing import Protocol

from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan, split_evenly
from onecurve.describe.units import counted

SUPPORTED_AXES = ("pipeline", "replicate", "shard", "tensor")


class HostDevices(Protocol):
    """The devices of a host."""

    @property
    def device_kind(self) -> str:
        """As torch names it: `cpu`, `cuda`, ..."""

    @property
    def devices(self) -> int:
        """Number of accelerators."""


def validate(plan: Plan, global_batch: int, host: HostDevices, local_ranks: int | None = None) -> None:
    """Raise OnecurveError if this job cannot run the plan.

    Args:
        plan: The plan.
        global_batch: The job's samples per step.
        host: The devices of this host.
        local_ranks: Ranks that share the devices of this host. Default: all ranks of the plan.
    """
    for axis, degree in plan.mesh.degrees.items():
        if degree > 1 and axis not in SUPPORTED_AXES:
            raise OnecurveError(
                f"plan {plan}: the axis {axis!r} is not supported by this version; use "
                f"{', '.join(SUPPORTED_AXES[:-1])} or {SUPPORTED_AXES[-1]} instead"
            )
    _check_options(plan, host)
    _check_pipeline(plan)
    if plan.global_batch != global_batch:
        raise OnecurveError(
            f"plan {plan}: {counted(plan.round_size, 'sample')} × {counted(plan.rounds, 'round')} = "
            f"{counted(plan.global_batch, 'sample')} per step, but the job's global_batch is {global_batch} "
            f"({_suggestion(plan, global_batch)})"
        )
    local_ranks = plan.mesh.size if local_ranks is None else local_ranks
    if host.device_kind != "cpu" and local_ranks > host.devices:
        raise OnecurveError(
            f"plan {plan}: {local_ranks} ranks of this host need a device each, but it has {host.devices} of kind "
            f"{host.device_kind}; reduce the degrees of the axes, or use more hosts"
        )


def _check_options(plan: Plan, host: HostDevices) -> None:
    """Reject options that exclude each other. An option without effect is rejected too: it is probably a mistake."""
    if plan.sharding == "zero2" and plan.mesh.shard == 1:
        raise OnecurveError(f"plan {plan}: zero2 without the axis 'shard'; add shard2 or more, or remove zero2")
    if plan.compile and plan.mesh.tensor > 1:
        raise OnecurveError(
            f"plan {plan}: torch.compile does not support blocks that are split along 'tensor'; remove compile"
        )
    if plan.sequence and plan.mesh.tensor == 1:
        raise OnecurveError(f"plan {plan}: sequence without the axis 'tensor'; add tensor2 or more, or remove sequence")
    if plan.compress != "none" and plan.mesh.data == 1:
        raise OnecurveError(
            f"plan {plan}: compress={plan.compress}, but a single data-parallel rank sends no gradients; remove it"
        )
    if plan.threads and host.device_kind != "cpu":
        raise OnecurveError(
            f"plan {plan}: threads={plan.threads} applies to CPU ranks only, but the devices are "
            f"{host.device_kind}; remove threads"
        )


def _check_pipeline(plan: Plan) -> None:
    """Reject numbers of stages and rounds that the schedule does not support."""
    pipeline, rounds, stages = plan.mesh.pipeline, plan.rounds, plan.stage_count
    if pipeline == 1:
        if plan.schedule != "1f1b" or plan.stages:
            option = f"schedule={plan.schedule}" if plan.schedule != "1f1b" else "stages"
            raise OnecurveError(
                f"plan {plan}: {option} without the axis 'pipeline'; add pipeline2 or more, or remove {option}"
            )
        return
    if stages % pipeline:
        raise OnecurveError(
            f"plan {plan}: {stages} stages cannot be divided evenly over {pipeline} pipeline ranks; use a multiple of "
            f"{pipeline}"
        )
    if plan.schedule in ("gpipe", "1f1b") and stages != pipeline:
        raise OnecurveError(
            f"plan {plan}: {plan.schedule} needs one stage per pipeline rank, but the plan has {stages} stages for "
            f"{pipeline} ranks; use schedule=interleaved, or {pipeline} stages"
        )
    if plan.schedule == "1f1b" and rounds < pipeline:
        raise OnecurveError(
            f"plan {plan}: 1f1b with {pipeline} stages needs at least {pipeline} rounds, but the plan has {rounds}; "
            "use more rounds, or schedule=gpipe"
        )
    if plan.schedule in ("interleaved", "zero-bubble") and rounds % max(1, rounds // pipeline):
        raise OnecurveError(
            f"plan {plan}: {plan.schedule} runs rounds in equal groups of about {pipeline}, but {rounds} rounds cannot "
            f"be grouped like that; use a multiple of {pipeline}"
        )
    if plan.schedule == "zero-bubble":
        _check_split_backward(plan)


def _check_split_backward(plan: Plan) -> None:
    """Reject options that zero-bubble does not support.

    It computes the weight gradients later than the input gradients, and parameters must not be resharded in between.
    """
    if plan.mesh.data > 1 and ((plan.sharding == "zero3" and plan.mesh.shard > 1) or plan.reduce == "round"):
        raise OnecurveError(
            f"plan {plan}: zero-bubble needs parameters that stay gathered until the end of the step; add zero2 and "
            "remove reduce=round, or use another schedule"
        )
    if plan.compile:
        raise OnecurveError(
            f"plan {plan}: zero-bubble cannot split the backward of compiled blocks; remove compile, or use another "
            "schedule"
        )
    if plan.recompute != "none":
        raise OnecurveError(
            f"plan {plan}: zero-bubble splits backward into two parts, each of which would recompute the forward; "
            f"remove recompute={plan.recompute}, or use another schedule"
        )


def _suggestion(plan: Plan, global_batch: int) -> str:
    round_size, remainder = divmod(global_batch, plan.rounds)
    if remainder:
        divisors = [r for r in range(1, min(global_batch, 64) + 1) if global_batch % r == 0]
        return f"rounds must divide global_batch: try {', '.join(map(str, divisors))}"
    if round_size < plan.mesh.data:
        return f"{round_size} samples per round for {plan.mesh.data} data-parallel ranks: use fewer rounds or ranks"
    shares = split_evenly(round_size, plan.mesh.data)
    return f"try {replace(plan, micro_batch=shares)}"
