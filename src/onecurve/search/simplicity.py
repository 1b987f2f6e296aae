"""Which of two plans is simpler, and the margin within which the simpler one is preferred to the faster one."""

from onecurve.describe.plan import Plan

INDISTINGUISHABLE = 0.05
"""Relative difference of two predicted step times below which the slower plan is about as likely to be the faster one:
in published runs (benchmarks/published_runs.py) the predicted order of such plans is right in 62 % of the pairs."""
_PLAINNESS = {"replicate": 0, "shard": 1, "tensor": 2, "context": 2, "expert": 2, "pipeline": 3}
"""Rank of an axis: the larger, the more of the model is rewritten for it."""
_STOCK_SCHEDULES = ("1f1b", "gpipe")

Complexity = tuple[int, int, int, int]
"""Number of axes, number of options, plainness of the axes, number of ranks; the smaller tuple is simpler."""


def complexity(plan: Plan) -> Complexity:
    """Return what plans are ordered by: fewer axes first, then fewer options, plainer axes, fewer ranks."""
    axes = _axes(plan)
    return len(axes), len(_options(plan)), sum(_PLAINNESS[axis] for axis in axes), plan.mesh.size


def why_less_simple(plan: Plan, simpler: Plan) -> str:
    """Return what makes `plan` less simple than `simpler`, as a clause; empty if it is not."""
    ours, theirs = complexity(plan), complexity(simpler)
    if ours <= theirs:
        return ""
    if ours[0] != theirs[0]:
        return f"{_count(ours[0], 'axis', 'axes')} instead of {theirs[0]}"
    if ours[1] != theirs[1]:
        added = [option for option in _options(plan) if option not in _options(simpler)]
        return f"more options ({', '.join(added)})"
    if ours[2] != theirs[2]:
        return f"{'·'.join(_axes(plan))} instead of {'·'.join(_axes(simpler))}"
    return f"{ours[3]:,} ranks instead of {theirs[3]:,}"


def _axes(plan: Plan) -> list[str]:
    return [axis for axis, degree in plan.mesh.degrees.items() if degree > 1]


def _options(plan: Plan) -> list[str]:
    """Return the choices of a plan that plain training in fp32 does not make, as a person would name them."""
    options = [
        (plan.precision != "fp32", plan.precision),
        (isinstance(plan.micro_batch, tuple), "uneven shares"),
        (plan.rounds > 1 and plan.mesh.pipeline == 1, "gradient accumulation"),  # a pipeline cannot do without rounds
        (plan.schedule not in _STOCK_SCHEDULES, f"schedule={plan.schedule}"),
        (plan.recompute != "none", f"recompute={plan.recompute}"),
        (plan.sharding != "zero3", plan.sharding),
        (plan.reduce != "step", f"reduce={plan.reduce}"),
        (plan.sequence, "sequence"),
        (plan.compile, "compile"),
    ]
    return [name for is_used, name in options if is_used]


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"
