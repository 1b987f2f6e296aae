"""Whether a plan can be obeyed: by this job, on this cluster, by what is built. A refusal says the mend."""

from dataclasses import replace

from onecurve.describe.cluster import Cluster
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan, split_evenly

BUILT_AXES = ("pipeline", "replicate", "shard", "tensor")


def validate(plan: Plan, global_batch: int, cluster: Cluster) -> None:
    """Refuse a plan that this job on this cluster cannot obey, with the mend."""
    for axis, degree in plan.mesh.degrees.items():
        if degree > 1 and axis not in BUILT_AXES:
            raise OnecurveError(
                f"plan {plan}: the axis {axis!r} is not built yet; this version runs {' and '.join(BUILT_AXES)}"
            )
    _refuse_senseless(plan, cluster)
    _refuse_impossible_pipeline(plan)
    if plan.global_batch != global_batch:
        raise OnecurveError(
            f"plan {plan}: its shares make {plan.round_size} samples × {plan.rounds} rounds = {plan.global_batch} a "
            f"step, but the job's global_batch is {global_batch} ({_fitting(plan, global_batch)})"
        )
    if cluster.device_kind != "cpu" and plan.mesh.size > cluster.devices:
        raise OnecurveError(
            f"plan {plan}: needs {plan.mesh.size} devices, here are {cluster.devices} of kind {cluster.device_kind}; "
            "make the axes smaller"
        )


def _refuse_senseless(plan: Plan, cluster: Cluster) -> None:
    """An option that would do nothing is a mistake."""
    if plan.sharding == "zero2" and plan.mesh.shard == 1:
        raise OnecurveError(f"plan {plan}: zero2 without the axis 'shard'; add shard2 or more, or leave zero2 out")
    if plan.compile and plan.mesh.tensor > 1:
        raise OnecurveError(f"plan {plan}: torch cannot compile blocks that are cut along 'tensor'; leave compile out")
    if plan.sequence and plan.mesh.tensor == 1:
        raise OnecurveError(f"plan {plan}: sequence without the axis 'tensor'; add tensor2 or more, or leave it out")
    if plan.compress != "none" and plan.mesh.data == 1:
        raise OnecurveError(f"plan {plan}: compress={plan.compress}, but one rank sends no gradients; leave it out")
    if plan.threads and cluster.device_kind != "cpu":
        raise OnecurveError(
            f"plan {plan}: threads are for CPU ranks, this host has {cluster.device_kind}; leave them out"
        )


def _refuse_impossible_pipeline(plan: Plan) -> None:
    pipeline, rounds, stages = plan.mesh.pipeline, plan.rounds, plan.stage_count
    if pipeline == 1:
        if plan.schedule != "1f1b" or plan.stages:
            what = f"schedule={plan.schedule}" if plan.schedule != "1f1b" else "stages"
            raise OnecurveError(
                f"plan {plan}: {what} without the axis 'pipeline'; add pipeline2 or more, or leave it out"
            )
        return
    if stages % pipeline:
        raise OnecurveError(
            f"plan {plan}: {stages} stages over {pipeline} pipeline ranks; give each as many as the others"
        )
    if plan.schedule in ("gpipe", "1f1b") and stages != pipeline:
        raise OnecurveError(
            f"plan {plan}: {plan.schedule} has one stage per rank, the plan {stages} for {pipeline}; use "
            "schedule=interleaved, or one stage per rank"
        )
    if plan.schedule == "1f1b" and rounds < pipeline:
        raise OnecurveError(
            f"plan {plan}: 1f1b keeps every stage busy with a round of its own, so {pipeline} stages need {pipeline} "
            f"rounds or more, the plan has {rounds}; use more rounds, or schedule=gpipe"
        )
    if plan.schedule in ("interleaved", "zero-bubble") and rounds % max(1, rounds // pipeline):
        raise OnecurveError(
            f"plan {plan}: {plan.schedule} takes rounds in groups of about {pipeline}, {rounds} cannot be grouped so; "
            f"use a multiple of {pipeline}"
        )
    if plan.schedule == "zero-bubble":
        _refuse_halved_backward(plan)


def _refuse_halved_backward(plan: Plan) -> None:
    """zero-bubble runs a backward in halves, weights later: in between, parameters must stay as they are."""
    if plan.mesh.data > 1 and ((plan.sharding == "zero3" and plan.mesh.shard > 1) or plan.reduce == "round"):
        raise OnecurveError(
            f"plan {plan}: zero-bubble needs parameters that stay gathered until the step's end: add zero2, and leave "
            "reduce=round out; or use another schedule"
        )
    if plan.compile:
        raise OnecurveError(f"plan {plan}: torch cannot halve the backward of compiled blocks; use another schedule")
    if plan.recompute != "none":
        raise OnecurveError(
            f"plan {plan}: zero-bubble runs backward in halves, each of which would recompute; leave recompute out, or "
            "use another schedule"
        )


def _fitting(plan: Plan, global_batch: int) -> str:
    round_size, rest = divmod(global_batch, plan.rounds)
    if rest:
        divisors = [r for r in range(1, min(global_batch, 64) + 1) if global_batch % r == 0]
        return f"rounds must divide it: try {', '.join(map(str, divisors))}"
    if round_size < plan.mesh.data:
        return f"a round of {round_size} cannot feed {plan.mesh.data} data-parallel ranks: use fewer rounds or ranks"
    shares = split_evenly(round_size, plan.mesh.data)
    return f"try {replace(plan, micro_batch=shares)}"
